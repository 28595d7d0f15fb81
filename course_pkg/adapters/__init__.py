"""Parameter-efficient fine-tuning: small adapters on a frozen model. Chapter: adapters."""
