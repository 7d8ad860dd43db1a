//! The order in which a job tries its configurations.

use crate::cost::Forecast;
use crate::instance::{Config, Holding, Instance, JobData};

/// Seconds before a job can start anywhere: a leaving job must be gone first.
pub fn start_delay(instance: &Instance<'_>, job: usize) -> f64 {
    delay(instance, &instance.jobs[job])
}

fn delay(instance: &Instance<'_>, data: &JobData<'_>) -> f64 {
    if matches!(data.holding, Holding::Leaving { .. }) { data.gone_in(instance.now) } else { 0.0 }
}

/// Seconds from now until a job ends in a configuration.
pub fn run(instance: &Instance<'_>, job: usize, config: usize) -> f64 {
    let data = &instance.jobs[job];
    delay(instance, data) + data.configs[config].time
}

/// Cost of the energy of a whole run, as if alone on its nodes.
pub fn run_energy(instance: &Instance<'_>, config: &Config) -> f64 {
    let overhead = instance.types[config.kind].overhead * f64::from(config.nodes);
    instance.prices.energy_cost(config.power + overhead, config.time)
}

/// Configurations of a job, cheapest first by the whole expected cost: energy, lateness, time in the system.
pub fn cheapest(instance: &Instance<'_>, job: usize) -> Vec<usize> {
    let data = &instance.jobs[job];
    let delay = delay(instance, data);
    let rules = &instance.snapshot.lateness;
    let cost = |config: &Config| {
        let run = Forecast { delay, time: config.time, rel_std: config.rel_std };
        let late = run.lateness_cost(data.deadline - instance.now, data.weight, data.share, 0.0, rules);
        run_energy(instance, config) + late
    };
    let mut keyed: Vec<((f64, f64), usize)> =
        data.offered().map(|(i, config)| ((cost(config), config.time), i)).collect();
    keyed.sort_by(|(a, i), (b, j)| a.0.total_cmp(&b.0).then(a.1.total_cmp(&b.1)).then(i.cmp(j)));
    keyed.into_iter().map(|(_, config)| config).collect()
}
