//! Keeping jobs on their nodes.

use super::{Chosen, Search};
use crate::instance::Spot;

impl Search<'_, '_> {
    /// The Analyzer of the original: a job that keeps its GPU type keeps its nodes, with the new number of GPUs;
    /// the others go where they were planned, else wherever their type has room. Used only if no more nodes are
    /// opened and no fewer jobs run.
    pub(super) fn keep_nodes(&self, chosen: &Chosen) -> Option<Chosen> {
        let instance = self.instance;
        let stays = |job: usize, spot: &Spot| {
            let present = self.present[job].as_ref()?;
            let data = &instance.jobs[job];
            let (old, new) = (&data.configs[present.config], &data.configs[spot.config]);
            let alike = old.kind == new.kind && present.nodes.as_slice().len() == new.nodes as usize;
            alike.then(|| Spot { config: spot.config, nodes: present.nodes.clone() })
        };
        let mut ledger = self.base.ledger.clone();
        let mut kept: Vec<Option<Spot>> = vec![None; chosen.len()];
        for (slot, (job, spot)) in kept.iter_mut().zip(chosen) {
            *slot = stays(*job, spot).filter(|same| ledger.fits(instance, *job, same).is_ok());
            if let Some(same) = slot {
                ledger.take(instance, *job, same);
            }
        }
        for (slot, (job, spot)) in kept.iter_mut().zip(chosen).filter(|(slot, _)| slot.is_none()) {
            if ledger.fits(instance, *job, spot).is_ok() {
                *slot = Some(spot.clone());
            } else if let Ok(nodes) = ledger.find(instance, *job, spot.config) {
                *slot = Some(Spot { config: spot.config, nodes });
            }
            if let Some(spot) = slot {
                ledger.take(instance, *job, spot);
            }
        }
        let nodes = |spots: &mut dyn Iterator<Item = &Spot>| {
            let mut used: Vec<u32> = spots.flat_map(|s| s.nodes.as_slice().iter().copied()).collect();
            used.sort_unstable();
            used.dedup();
            used.len()
        };
        let runs_all = kept.iter().all(Option::is_some);
        let opened = nodes(&mut kept.iter().flatten());
        (runs_all && opened <= nodes(&mut chosen.iter().map(|(_, s)| s)))
            .then(|| chosen.iter().zip(kept).filter_map(|((job, _), spot)| Some((*job, spot?))).collect())
    }
}
