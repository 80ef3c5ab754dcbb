"""ResourceQuotas: what objects use of them, which quotas they count in, and the books that never go over."""

from koordinator.local.admission.quota.books import Bill, QuotaBooks

__all__ = ["Bill", "QuotaBooks"]
