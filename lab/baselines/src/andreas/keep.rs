//! Keeping jobs on their nodes.

use andreas_planner::policy::Assignment;

use super::{AssignmentList, Search};

impl Search<'_, '_> {
    /// The Analyzer of the original. A job that keeps its GPU type keeps its nodes, with the new number of
    /// GPUs. Other jobs get the planned nodes, else any nodes of their type with room. The result is used
    /// only if it opens no more nodes and runs no fewer jobs.
    pub(super) fn keep_nodes(&self, chosen: &AssignmentList) -> Option<AssignmentList> {
        let instance = self.instance;
        let stays = |job: usize, assignment: &Assignment| {
            let current = self.current[job].as_ref()?;
            let data = &instance.jobs[job];
            let (old, new) = (&data.configs[current.config], &data.configs[assignment.config]);
            let alike = old.kind == new.kind && current.nodes.as_slice().len() == new.nodes as usize;
            alike.then(|| Assignment { config: assignment.config, nodes: current.nodes.clone() })
        };
        let mut ledger = self.base.plan.ledger.clone();
        let mut kept: Vec<Option<Assignment>> = vec![None; chosen.len()];
        for (slot, (job, assignment)) in kept.iter_mut().zip(chosen) {
            *slot = stays(*job, assignment).filter(|same| ledger.fits(instance, *job, same).is_ok());
            if let Some(same) = slot {
                ledger.take(instance, *job, same);
            }
        }
        for (slot, (job, assignment)) in kept.iter_mut().zip(chosen).filter(|(slot, _)| slot.is_none()) {
            if ledger.fits(instance, *job, assignment).is_ok() {
                *slot = Some(assignment.clone());
            } else if let Ok(nodes) = ledger.find(instance, *job, assignment.config) {
                *slot = Some(Assignment { config: assignment.config, nodes });
            }
            if let Some(assignment) = slot {
                ledger.take(instance, *job, assignment);
            }
        }
        let nodes = |assignments: &mut dyn Iterator<Item = &Assignment>| {
            let mut used: Vec<u32> = assignments.flat_map(|s| s.nodes.as_slice().iter().copied()).collect();
            used.sort_unstable();
            used.dedup();
            used.len()
        };
        let runs_all = kept.iter().all(Option::is_some);
        let opened = nodes(&mut kept.iter().flatten());
        (runs_all && opened <= nodes(&mut chosen.iter().map(|(_, s)| s))).then(|| {
            chosen.iter().zip(kept).filter_map(|((job, _), assignment)| Some((*job, assignment?))).collect()
        })
    }
}
