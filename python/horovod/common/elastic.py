"""State that is kept, restored and sent to all, and the loop that does so."""

from farandole.elastic import ObjectState, State, notification_manager, run_fn

__all__ = ["ObjectState", "State", "notification_manager", "run_fn"]
