"""Access: tokens, scopes and enrolment, and the checks of every request."""
