"""Decide who may do what: roles and their bindings, acting as others, and the roles that every cluster has."""

from koordinator.local.authorization.rbac import Authorizer, Decision, MastersOnly, Rbac
from koordinator.local.authorization.rules import Request

__all__ = ["Authorizer", "Decision", "MastersOnly", "Rbac", "Request"]
