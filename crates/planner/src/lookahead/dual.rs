//! The Lagrangian dual of a step: one price per GPU of a class and one per watt.

use super::step::{Choice, Step};
use crate::partial::PartialPlan;

/// Maximum rounds of the search.
const ROUNDS: usize = 80;
/// The search ends after this many rounds that each gained less than the required part of the bound.
const MAX_IDLE_ROUNDS: usize = 10;
const CLOSE: f64 = 1e-7;
/// With an allowed gap, a gain below this part of the gap ends the search.
const ENOUGH: f64 = 0.02;

/// Solves the dual of a step: sets the prices of the free capacity, the bound, and the options by reduced cost. A
/// larger allowed gap ends the search earlier.
pub(super) fn priced_step<'a, 'b>(mut step: Step<'a, 'b>, base: &PartialPlan, gap: f64) -> Step<'a, 'b> {
    let instance = step.instance;
    let close = CLOSE.max(gap * ENOUGH);
    let mut room = vec![0.0; step.classes.list.len()];
    for (node, class) in step.classes.of_node.iter().enumerate() {
        let free = u32::try_from(node).map_or(0, |n| base.ledger.free_gpus(n));
        room[*class] += free.max(0) as f64;
    }
    let watts = instance.allowed_mw.map(|allowed| (allowed - base.ledger.power()).max(0) as f64 / 1e3);
    let fixed: f64 =
        (0..step.current.len()).filter_map(|job| Some(step.cost(job, base.assignments[job].as_ref()?))).sum();
    let mut dual = Dual::new(&step, &room, watts);
    let mut best = (f64::NEG_INFINITY, dual.gpu.clone(), 0.0);
    let mut idle = 0;
    for _ in 0..ROUNDS {
        let value = dual.round(&step, &room, watts);
        let gained = value - best.0;
        idle = if gained > close * value.abs() { 0 } else { idle + 1 };
        if gained > 0.0 {
            best = (value, dual.at.0.clone(), dual.at.1);
        }
        if dual.settled || idle >= MAX_IDLE_ROUNDS {
            break;
        }
    }
    let (value, gpu, watt) = best;
    (step.fixed, step.bound) = (fixed, fixed + value);
    for options in &mut step.options {
        for o in options.iter_mut() {
            o.reduced = o.cost + gpu[o.class] * o.gpus + watt * o.watts;
        }
        options.sort_by(|a, b| {
            a.reduced.total_cmp(&b.reduced).then(a.config.cmp(&b.config)).then(a.class.cmp(&b.class))
        });
    }
    step
}

/// Search for the best prices of the free capacity.
struct Dual {
    gpu: Vec<f64>,
    watt: f64,
    steps: Vec<f64>,
    up: Vec<i8>,
    /// Prices of the last round.
    at: (Vec<f64>, f64),
    settled: bool,
    jobs: Vec<usize>,
    /// Cost of the jobs without any option.
    idle: f64,
}

impl Dual {
    fn new(step: &Step<'_, '_>, room: &[f64], watts: Option<f64>) -> Self {
        let worth = |o: &&Choice| o.gpus > 0.0;
        let mut scale = (0.0, 0.0);
        for (job, options) in step.options.iter().enumerate() {
            let gain = |o: &Choice| ((step.wait[job] - o.cost) / o.gpus).max(0.0);
            if let Some(most) = options.iter().filter(worth).map(gain).reduce(f64::max) {
                scale = (scale.0 + most, scale.1 + 1.0);
            }
        }
        let mean = if scale.1 > 0.0 { scale.0 / scale.1 } else { 0.0 };
        let mut steps = vec![mean * 0.25; room.len()];
        steps.push(if watts.is_some() { mean * 0.25 / 300.0 } else { 0.0 });
        let (jobs, others): (Vec<usize>, Vec<usize>) =
            (0..step.options.len()).partition(|j| !step.options[*j].is_empty());
        Self {
            gpu: vec![0.0; room.len()],
            watt: 0.0,
            up: vec![0; steps.len()],
            steps,
            at: (Vec::new(), 0.0),
            settled: false,
            idle: others.iter().map(|j| step.waiting_cost(*j)).sum(),
            jobs,
        }
    }

    /// The dual value at the present prices; then updates the prices.
    fn round(&mut self, step: &Step<'_, '_>, room: &[f64], watts: Option<f64>) -> f64 {
        let (mut used, mut drawn) = (vec![0.0; room.len()], 0.0);
        let mut value = self.idle;
        for &job in &self.jobs {
            let mut best = (step.wait[job], None);
            for o in &step.options[job] {
                let cost = o.cost + self.gpu[o.class] * o.gpus + self.watt * o.watts;
                if cost < best.0 {
                    best = (cost, Some(o));
                }
            }
            value += best.0;
            if let Some(o) = best.1 {
                used[o.class] += o.gpus;
                drawn += o.watts;
            }
        }
        for (class, room) in room.iter().enumerate() {
            value -= self.gpu[class] * room;
        }
        value -= self.watt * watts.unwrap_or(0.0);
        self.at = (self.gpu.clone(), self.watt);
        self.settled = true;
        for class in 0..room.len() {
            self.gpu[class] = self.adjust(class, self.gpu[class], used[class] - room[class]);
        }
        if let Some(watts) = watts {
            self.watt = self.adjust(room.len(), self.watt, drawn - watts);
        }
        value
    }

    fn adjust(&mut self, at: usize, price: f64, excess: f64) -> f64 {
        let up: i8 = if excess > 0.0 {
            1
        } else if excess < 0.0 && price > 0.0 {
            -1
        } else {
            return price;
        };
        self.settled = false;
        if up * self.up[at] > 0 {
            self.steps[at] *= 1.4;
        } else if up * self.up[at] < 0 {
            self.steps[at] *= 0.45;
        }
        self.up[at] = up;
        (price + f64::from(up) * self.steps[at]).max(0.0)
    }
}
