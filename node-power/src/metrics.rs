//! Metrics of node-power.

use andreas_api::node_power::PowerState;
use andreas_runtime::metrics::{Labels, Metric, PROCESS, register_process};
use andreas_runtime::watch::WATCHES;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

use crate::world::World;

andreas_runtime::metrics! {
    /// The program's own.
    const OWN;

    MACHINES = gauge("andreas_node_power_machines", &["state"],
        "Machines with a NodePower, by state: On, GoingOff, Off, Starting, Quarantined; 0 where another replica leads");
}

/// All metrics of node-power.
#[must_use]
pub fn all() -> Vec<Metric> {
    [OWN, WATCHES, PROCESS].concat()
}

const STATES: [(PowerState, &str); 5] = [
    (PowerState::On, "On"),
    (PowerState::GoingOff, "GoingOff"),
    (PowerState::Off, "Off"),
    (PowerState::Starting, "Starting"),
    (PowerState::Quarantined, "Quarantined"),
];

/// All metrics. Clones share them.
#[derive(Clone, Debug)]
pub struct Metrics {
    machines: Family<Labels<1>, Gauge>,
}

impl Metrics {
    /// Creates the metrics and adds them to `registry`.
    pub fn register(registry: &mut Registry) -> Self {
        let this = Self { machines: MACHINES.create(registry) };
        this.states(&World::default());
        register_process(registry, env!("CARGO_PKG_VERSION"));
        this
    }

    /// Counts machines by state.
    pub fn states(&self, world: &World) {
        for (state, name) in STATES {
            let count = i64::try_from(world.others_in("", state)).unwrap_or(i64::MAX);
            self.machines.get_or_create(&[("state", name)]).set(count);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use andreas_runtime::testing::{classic, deviations, ill_named};

    #[test]
    fn the_list_holds_what_is_exposed_and_nothing_else() {
        let mut registry = Registry::default();
        let _ = Metrics::register(&mut registry);
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &registry).unwrap();
        let own: Vec<_> = all().into_iter().filter(|metric| !WATCHES.contains(metric)).collect();
        assert_eq!(deviations(&classic(&text), &own), Vec::<String>::new());
        assert_eq!(ill_named(&all()), Vec::<String>::new());
    }
}
