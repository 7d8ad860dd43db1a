//! Whether a machine is wanted on, written to its NodePower: the one field of these objects that the operator writes.

use std::sync::Arc;

use andreas_api::node_power::{PowerMode, WantedPower};
use andreas_api::slim::SlimNodePower;
use andreas_cluster::index::ClusterIndex;
use andreas_runtime::watch::ObjectKey;
use serde_json::json;

use super::patches::AT_ONCE;
use crate::shared::Shared;

/// Machines of which something else is wanted than their NodePower says; those that are wanted on first.
fn news(index: &ClusterIndex, wanted: impl Fn(&str) -> Option<WantedPower>) -> Vec<(ObjectKey, WantedPower)> {
    let changed = index.node_powers().iter().filter_map(|(key, power)| {
        let wanted = wanted(&key.name).filter(|wanted| *wanted != power.spec.wanted)?;
        (power.spec.mode == PowerMode::Auto).then(|| (key.clone(), wanted))
    });
    let (mut first, others): (Vec<_>, Vec<_>) = changed.partition(|(_, wanted)| *wanted == WantedPower::On);
    first.extend(others);
    first.truncate(AT_ONCE);
    first
}

/// Writes what the last plan wants.
pub(super) async fn want(shared: &Arc<Shared>) {
    let news = {
        let wanted = shared.wanted_power.lock().clone();
        news(&shared.index.lock(), |name| wanted.get(name).copied())
    };
    let writes = news.into_iter().map(|(key, wanted)| async move {
        let body = json!({"spec": {"wanted": wanted}});
        match shared.writer.patch::<SlimNodePower>("power", &key, &body).await {
            Ok(answer) => {
                tracing::info!(node = key.name, ?wanted, "power");
                shared.index.lock().wrote_node_power(answer);
            }
            Err(error) => {
                tracing::warn!(
                    node = key.name,
                    error = &error as &dyn std::error::Error,
                    "power not written"
                );
            }
        }
    });
    futures::future::join_all(writes).await;
}

#[cfg(test)]
mod tests {
    use andreas_runtime::watch::Index;

    use super::*;

    #[test]
    fn what_is_wanted_is_written_where_the_operator_decides_and_starts_go_first() {
        let mut index = ClusterIndex::new();
        for (name, mode, wanted) in [
            ("a", "Auto", "On"),
            ("b", "Auto", "Off"),
            ("c", "On", "On"),
            ("d", "Auto", "Off"),
            ("e", "Auto", "Off"),
        ] {
            let power = json!({"metadata": {"name": name, "resourceVersion": "1"}, "spec": {"mode": mode, "wanted": wanted}});
            index.apply(serde_json::from_value::<SlimNodePower>(power).expect("a NodePower"));
        }
        let wanted = |name: &str| match name {
            "a" | "c" | "d" => Some(WantedPower::Off),
            "b" => Some(WantedPower::On),
            _ => None,
        };
        let named: Vec<_> =
            news(&index, wanted).into_iter().map(|(key, wanted)| (key.name, wanted)).collect();
        assert_eq!(named, [("b".to_owned(), WantedPower::On), ("a".to_owned(), WantedPower::Off)]);
    }
}
