//! Snapshot to Plan: every scheduling policy, pure.
