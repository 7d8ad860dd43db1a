//! One step: runs the phases until none changes anything.

use andreas_api::Phase;
use andreas_cluster::instants;

use super::action::Step;
use super::draft::Draft;
use super::observed::Observed;
use super::{adopted, cancel, end, run, start, stop};

/// Maximum phases in one step: Pending, Starting, Running, Stopping, Pending again, Suspended.
const MAX_PHASES: usize = 8;

/// Desired state from observed state. Total and deterministic; see the [module](super) page.
pub fn step(observed: &Observed<'_>) -> Step {
    let mut d = Draft::new(observed);
    let metadata = &observed.job.metadata;
    if metadata.deletion_timestamp.is_some() {
        cancel::cancelled(&mut d);
        return d.finish();
    }
    d.status.observed_generation = metadata.generation;
    // What became of a job's deadline is final.
    if !d.status.phase.is_terminal() {
        d.status.deadline = instants::deadline(&observed.job.spec, metadata.creation_timestamp.as_ref());
    }
    end::correct_energy(&mut d);
    let adopts = observed.job.spec.adopts.is_some();
    for _ in 0..MAX_PHASES {
        let phase = d.status.phase;
        match phase {
            Phase::Pending | Phase::Suspended => start::waiting(&mut d),
            Phase::Starting if adopts => adopted::starting(&mut d),
            Phase::Running if adopts => adopted::running(&mut d),
            Phase::Stopping if adopts => adopted::stopping(&mut d),
            Phase::Starting => start::starting(&mut d),
            Phase::Running => run::running(&mut d),
            Phase::Stopping => stop::stopping(&mut d),
            Phase::Succeeded | Phase::Failed => end::ended(&mut d),
        }
        if d.status.phase == phase {
            break;
        }
    }
    end::delete_unneeded_pods(&mut d);
    d.finish()
}
