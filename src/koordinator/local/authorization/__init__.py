"""Decide who may do what: roles and their bindings, acting as others, and the roles that every cluster has."""

from koordinator.local.authorization.rbac import Authorizer, MastersOnly, Rbac, RBACDecision
from koordinator.local.authorization.rules import AccessRequest

__all__ = ["AccessRequest", "Authorizer", "MastersOnly", "RBACDecision", "Rbac"]
