//! Validation of what comparison systems get beside a snapshot.
//!
//! Magnitudes are limited to 1e15, as in snapshots, so that sums and products stay finite.

use std::collections::BTreeMap;

use andreas_core::{GpuType, Seconds};
use andreas_planner::SnapshotError;

use crate::memory::Memory;
use crate::tickets::Tickets;

/// Maximum magnitude of a number.
const LARGE: f64 = 1e15;

type Check = Result<(), SnapshotError>;

fn within(value: f64, low: f64, high: f64, field: impl FnOnce() -> String) -> Check {
    if value >= low && value <= high {
        return Ok(());
    }
    Err(SnapshotError { field: field(), problem: format!("{value} is not between {low} and {high}") })
}

/// Checks the tickets of every namespace.
pub(crate) fn tickets(tickets: &Tickets) -> Check {
    tickets.0.iter().try_for_each(|(name, tickets)| {
        if *tickets > 0.0 && *tickets <= LARGE {
            return Ok(());
        }
        let field = format!("namespaces[{name}].tickets");
        Err(SnapshotError { field, problem: format!("{tickets} is not greater than 0 and at most {LARGE}") })
    })
}

/// Checks the times and counters of a memory.
pub(crate) fn memory(memory: &Memory) -> Check {
    within(memory.now.0, -LARGE, LARGE, || "memory.now".into())?;
    let counters = |counters: &BTreeMap<GpuType, Seconds>, at: &dyn Fn() -> String| {
        counters
            .iter()
            .try_for_each(|(kind, had)| within(had.0, 0.0, LARGE, || format!("{}[{kind}]", at())))
    };
    for (id, job) in &memory.jobs {
        let at = |field: &str| format!("memory.jobs[{id}].{field}");
        within(job.service.0, 0.0, LARGE, || at("service"))?;
        within(job.ran.0, 0.0, LARGE, || at("ran"))?;
        job.waits_since.map_or(Ok(()), |since| within(since.0, -LARGE, LARGE, || at("waits_since")))?;
        counters(&job.received, &|| at("received"))?;
    }
    memory
        .namespaces
        .iter()
        .try_for_each(|(name, had)| counters(had, &|| format!("memory.namespaces[{name}]")))
}
