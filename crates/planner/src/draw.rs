//! Power that a plan draws of the budget, at one time.

use crate::instance::{Config, Instance};

/// Budgeted power.
#[derive(Clone)]
pub(crate) struct Draw {
    /// Of nodes and GPUs, in milliwatts.
    pub power: i128,
    /// Number of our workers on each node.
    pub workers: Vec<u32>,
}

impl Draw {
    pub fn change(&mut self, instance: &Instance<'_>, config: &Config, nodes: &[u32], sign: i64) {
        let wide = i128::from(sign);
        for &node in nodes {
            let of_node = &instance.nodes[node as usize];
            let workers = &mut self.workers[node as usize];
            if sign > 0 {
                *workers += 1;
                self.power += if *workers == 1 { of_node.overhead_mw } else { 0 };
            } else {
                *workers -= 1;
                self.power -= if *workers == 0 { of_node.overhead_mw } else { 0 };
            }
            // The idle draw of an unknown node is counted nowhere, so only known nodes replace theirs.
            self.power -= wide * instance.types[of_node.kind].idle_mw * i128::from(config.gpus);
        }
        self.power += wide * config.draw_mw();
    }

    pub fn after_start_mw(&self, instance: &Instance<'_>, config: &Config, nodes: &[u32]) -> i128 {
        let mut power = self.power + config.draw_mw();
        for &node in nodes {
            let data = &instance.nodes[node as usize];
            power -= instance.types[data.kind].idle_mw * i128::from(config.gpus);
            power += if self.workers[node as usize] == 0 { data.overhead_mw } else { 0 };
        }
        power
    }
}
