//! The Lagrangian dual of a step: one price per GPU of a class and one per watt.

use super::step::{Choice, Step};

/// Result of the dual of a step, with the capacity it was solved for.
#[derive(Default)]
pub(super) struct Prices {
    /// By class: price of a GPU.
    pub gpu: Vec<f64>,
    pub watt: f64,
    /// By class: number of GPUs.
    pub room: Vec<f64>,
    /// Available watts; infinite without a budget.
    pub watts: f64,
}

/// Search for the best prices of the free capacity.
pub(super) struct Dual {
    pub gpu: Vec<f64>,
    watt: f64,
    steps: Vec<f64>,
    up: Vec<i8>,
    /// Prices of the last round.
    pub at: (Vec<f64>, f64),
    pub settled: bool,
    jobs: Vec<usize>,
    /// Cost of the jobs without any option.
    idle: f64,
}

impl Dual {
    pub fn new(step: &Step<'_, '_>, room: &[f64], watts: Option<f64>) -> Self {
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
    pub fn round(&mut self, step: &Step<'_, '_>, room: &[f64], watts: Option<f64>) -> f64 {
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
