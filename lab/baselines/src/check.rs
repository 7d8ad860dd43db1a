//! Validation of what comparison systems get beside a snapshot.
//!
//! Magnitudes are limited to 1e15, as in snapshots, so that sums and products stay finite.

use std::collections::BTreeMap;

use andreas_model::{GpuType, Seconds};
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
        counters.iter().try_for_each(|(kind, had)| within(had.0, 0.0, LARGE, || format!("{}[{kind}]", at())))
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

#[cfg(test)]
mod tests {
    use andreas_model::Time;

    use super::*;
    use crate::memory::JobMemory;

    #[test]
    fn an_absurd_number_is_refused_with_its_field() {
        let field = |check: Check| check.map_err(|error| error.field);
        for number in [0.0, -1.0, f64::NAN, 1e16] {
            let refused = field(tickets(&Tickets([("a".into(), number)].into())));
            assert_eq!(refused, Err("namespaces[a].tickets".into()), "{number}");
        }
        assert_eq!(tickets(&Tickets([("a".into(), 0.5)].into())), Ok(()));
        let job =
            JobMemory { received: [("T4".into(), Seconds(f64::INFINITY))].into(), ..JobMemory::default() };
        let bad = Memory { jobs: [("a/one".into(), job)].into(), ..Memory::default() };
        assert_eq!(field(memory(&bad)), Err("memory.jobs[a/one].received[T4]".into()));
        let bad = Memory { now: Time(f64::NAN), ..Memory::default() };
        assert_eq!(field(memory(&bad)), Err("memory.now".into()));
    }
}
