//! Closes the gap to the optimum on small instances: reduced-cost fixing and branch and bound.
//!
//! At the dual prices every option has an excess over the job's cheapest one. The cost of a plan is the sum
//! of the dual value, the excesses, the price of unused capacity, and the fragmentation cost. Options with an
//! excess above the gap are dropped. The rest is searched depth first over classes of nodes. A leaf is packed
//! onto real nodes, largest workers first. If the packing costs no more than the leaf's bound, the leaf is
//! solved. Otherwise its bound remains and the result is not proven.

use super::search_state::SearchState;
use super::step::{Choice, Step};
use crate::instance::Assignment;
use crate::partial::PartialPlan;

/// Minimum number of leaves that may be packed.
const LEAVES: u64 = 4000;
/// Nodes of the search tree for each packed leaf.
const NODES_PER_LEAF: u64 = 200;
/// Relative difference below which costs are equal.
const EQUAL: f64 = 1e-10;

/// Result of a search.
pub(super) struct Proof {
    /// Proven lower bound of the cost.
    pub bound: f64,
    /// Nodes of the search tree.
    pub nodes: u64,
}

/// Options of one job.
struct Row {
    job: usize,
    /// Excess and option, cheapest first; `None` is waiting.
    ways: Vec<(f64, Option<Choice>)>,
}

struct Search<'x, 's, 'a, 'b> {
    step: &'s Step<'a, 'b>,
    base: &'x PartialPlan,
    open: &'s [bool],
    best: &'x mut SearchState<'s, 'a, 'b>,
    rows: Vec<Row>,
    /// By row and class: maximum GPUs that this row and the later ones could take.
    most: Vec<Vec<f64>>,
    taken: Vec<Option<Choice>>,
    left: Left,
    effort: Effort,
    /// Minimum bound of an unsolved leaf.
    unsolved: f64,
}

/// What the options taken so far leave.
struct Left {
    /// GPUs by class.
    room: Vec<f64>,
    watts: f64,
}

impl Left {
    fn fits(&self, option: &Choice) -> bool {
        option.gpus <= self.room[option.class] && option.watts <= self.watts
    }

    fn take(&mut self, option: &Choice) {
        self.room[option.class] -= option.gpus;
        self.watts -= option.watts;
    }

    fn give_back(&mut self, option: &Choice) {
        self.room[option.class] += option.gpus;
        self.watts += option.watts;
    }
}

/// How far a search may go, and went.
struct Effort {
    /// Maximum nodes of the search tree.
    limit: u64,
    nodes: u64,
    /// Packed leaves.
    leaves: u64,
    /// Whether the search tree was cut off.
    cut_off: bool,
}

impl Effort {
    /// Enters a node of the search tree; `false` if that is one too many.
    fn enter(&mut self) -> bool {
        self.nodes += 1;
        let over = self.nodes > self.limit || self.leaves > LEAVES.max(self.limit / NODES_PER_LEAF);
        self.cut_off |= over;
        !over
    }
}

/// Improves a plan and the bound by branch and bound, within `limit` nodes of the search tree.
pub(super) fn branch_and_bound<'s, 'a, 'b>(
    step: &'s Step<'a, 'b>,
    base: &PartialPlan,
    open: &'s [bool],
    best: &mut SearchState<'s, 'a, 'b>,
    limit: u64,
) -> Proof {
    let rows = rows(step, best.cost - step.bound);
    let mut search = Search {
        step,
        base,
        open,
        best,
        most: max_gpus_of_later_rows(step, &rows),
        taken: vec![None; rows.len()],
        rows,
        left: Left { room: step.dual.room.clone(), watts: step.dual.watts },
        effort: Effort { limit, nodes: 0, leaves: 0, cut_off: false },
        unsolved: f64::INFINITY,
    };
    search.descend(0, step.bound);
    let Effort { cut_off, nodes, .. } = search.effort;
    let proven = if cut_off { step.bound } else { search.best.cost.min(search.unsolved) };
    Proof { bound: proven.max(step.bound), nodes }
}

/// False if a gang may span several node classes, a job is stopping, or a job is fully aged.
pub(super) fn applies(step: &Step<'_, '_>) -> bool {
    let list = &step.classes.list;
    let classes = |kind: usize| list.iter().filter(|c| c.kind == kind).count();
    step.options.iter().flatten().all(|o| o.span == 1 || classes(list[o.class].kind) == 1)
        && step
            .options
            .iter()
            .zip(&step.instance.jobs)
            .all(|(options, job)| options.is_empty() || !job.fully_aged && job.leaving().is_none())
}

/// Options within the gap, for each job that has any; largest possible loss first.
fn rows(step: &Step<'_, '_>, gap: f64) -> Vec<Row> {
    let mut rows: Vec<Row> = Vec::new();
    for (job, options) in step.options.iter().enumerate().filter(|(_, o)| !o.is_empty()) {
        let wait = step.wait[job];
        let least = options.first().map_or(wait, |o| o.reduced.min(wait));
        let mut ways: Vec<(f64, Option<Choice>)> =
            options.iter().map(|o| (o.reduced - least, Some(*o))).collect();
        ways.push((wait - least, None));
        ways.retain(|(excess, _)| *excess <= gap);
        ways.sort_by(|a, b| a.0.total_cmp(&b.0));
        rows.push(Row { job, ways });
    }
    let second = |row: &Row| row.ways.get(1).map_or(f64::INFINITY, |w| w.0);
    rows.sort_by(|a, b| second(b).total_cmp(&second(a)).then(a.job.cmp(&b.job)));
    rows
}

fn max_gpus_of_later_rows(step: &Step<'_, '_>, rows: &[Row]) -> Vec<Vec<f64>> {
    let mut most = vec![vec![0.0; step.dual.room.len()]; rows.len() + 1];
    for (at, row) in rows.iter().enumerate().rev() {
        most[at] = most[at + 1].clone();
        for (class, sum) in most[at].iter_mut().enumerate() {
            let gpus =
                |(_, o): &(f64, Option<Choice>)| o.filter(|o| o.class == class).map_or(0.0, |o| o.gpus);
            *sum += row.ways.iter().map(gpus).fold(0.0, f64::max);
        }
    }
    most
}

impl Search<'_, '_, '_, '_> {
    fn cutoff(&self) -> f64 {
        self.best.cost - EQUAL * self.best.cost.abs()
    }

    /// Price of the GPUs that stay unused whatever the later rows take.
    fn unused(&self, at: usize) -> f64 {
        let classes = self.left.room.iter().zip(&self.most[at]).zip(&self.step.dual.gpu);
        classes.map(|((room, most), price)| price * (room - most).max(0.0)).sum()
    }

    fn descend(&mut self, at: usize, bound: f64) {
        if !self.effort.enter() {
            return;
        }
        if at == self.rows.len() {
            self.leaf(bound);
            return;
        }
        for way in 0..self.rows[at].ways.len() {
            let (excess, choice) = self.rows[at].ways[way];
            if bound + excess >= self.cutoff() {
                break;
            }
            if let Some(o) = choice {
                if !self.left.fits(&o) {
                    continue;
                }
                self.left.take(&o);
            }
            if bound + excess + self.unused(at + 1) < self.cutoff() {
                self.taken[at] = choice;
                self.descend(at + 1, bound + excess);
            }
            if let Some(o) = choice {
                self.left.give_back(&o);
            }
        }
    }

    /// Packs a leaf onto nodes.
    fn leaf(&mut self, bound: f64) {
        let watts = if self.left.watts.is_finite() { self.step.dual.watt * self.left.watts } else { 0.0 };
        let bound = bound + self.unused(self.rows.len()) + watts + self.fragmentation();
        if bound >= self.cutoff() {
            return;
        }
        self.effort.leaves += 1;
        let mut search_state = SearchState::new(self.step, self.base.clone(), self.open);
        let mut order: Vec<(bool, i64, usize, Choice)> = Vec::new();
        for (row, taken) in self.rows.iter().zip(&self.taken) {
            if let Some(o) = taken {
                let gpus = self.step.instance.jobs[row.job].configs[o.config].gpus;
                order.push((o.stays, gpus, row.job, *o));
            }
        }
        order.sort_by(|a, b| b.0.cmp(&a.0).then(b.1.cmp(&a.1)).then(a.2.cmp(&b.2)));
        let mut packed = true;
        for (stays, _, job, o) in order {
            let assignment = match &self.step.current[job] {
                Some(current) if stays => Some(Assignment { config: o.config, nodes: current.nodes.clone() })
                    .filter(|assignment| {
                        search_state.partial.ledger.fits(self.step.instance, job, assignment).is_ok()
                    }),
                _ => search_state.place(job, o.config),
            };
            match assignment {
                Some(assignment) => search_state.assign(job, assignment),
                None => packed = false,
            }
        }
        search_state.commit();
        if search_state.cost < self.best.cost {
            *self.best = search_state;
            packed &= self.best.cost <= bound + 10.0 * EQUAL * bound.abs();
        } else {
            packed = false;
        }
        if !packed {
            self.unsolved = self.unsolved.min(bound);
        }
    }

    /// Minimum fragmentation cost with this many GPUs used in each class.
    fn fragmentation(&self) -> f64 {
        let step = self.step;
        let mut sum = 0.0;
        for (class, of) in step.classes.list.iter().enumerate() {
            let nodes = || (0..step.classes.of_node.len()).filter(|n| step.classes.of_node[*n] == class);
            let alike = nodes().all(|n| step.instance.nodes[n].free_gpus == of.size);
            let least =
                nodes().map(|n| (step.instance.nodes[n].overhead, n)).min_by(|a, b| a.0.total_cmp(&b.0));
            if let (true, Some((_, node))) = (alike && of.size > 0, least) {
                let used = (of.gpus - self.left.room[class]) as i64;
                let last = used.rem_euclid(of.size);
                sum += u32::try_from(node)
                    .map_or(0.0, |n| step.cost_table.fragmentation(step.instance, n, last));
            }
        }
        sum
    }
}
