//! How many configurations a job has in a plan: types, totals, numbers of nodes and power limits. Time and memory of a plan grow with
//! them.

use andreas_api::training_job::GpuRequest;
use andreas_cluster::energy::{TypeFacts, Types};

/// Configurations beyond which a job is offered only 1, 2, 4, 8... nodes: one with 64 totals on up to 64 nodes would have thousands.
const MAX_FOR_ANY_NODES: usize = 512;

/// Whether a job is offered every number of nodes that it may have.
pub fn any_number_of_nodes(gpus: &GpuRequest, types: &Types) -> bool {
    placements(gpus, types, |_| true) <= MAX_FOR_ANY_NODES
}

/// About how many configurations a job has in a plan.
pub fn configurations(gpus: &GpuRequest, types: &Types) -> usize {
    let all = placements(gpus, types, |_| true);
    if all <= MAX_FOR_ANY_NODES { all } else { placements(gpus, types, u64::is_power_of_two) }
}

/// Each total on each of these numbers of nodes that could give it, for each type that the job may use, with and without power
/// limits.
fn placements(gpus: &GpuRequest, types: &Types, offered: impl Fn(u64) -> bool) -> usize {
    let totals: Vec<u64> = gpus.totals().into_iter().filter_map(|total| u64::try_from(total).ok()).collect();
    let most_nodes = u64::try_from(gpus.max_nodes).unwrap_or(1).max(1);
    let of_type = |facts: &TypeFacts| {
        let most = most_nodes.min(facts.gpus.div_ceil(facts.per_node.max(1)));
        let fits = |total: u64, each: u64| {
            total.is_multiple_of(each) && total / each <= most && offered(total / each)
        };
        let of = |each: u64| totals.iter().filter(|total| fits(**total, each)).count();
        (1..=facts.per_node).map(of).sum::<usize>() * (1 + facts.levels.len())
    };
    types.iter().filter(|(name, _)| gpus.allows_type(name.as_str())).map(|(_, facts)| of_type(facts)).sum()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn configurations_are_counted_as_a_plan_makes_them() {
        let facts = |per_node, levels: &[i32]| TypeFacts {
            gpus: 64 * per_node,
            per_node,
            levels: levels.to_vec(),
            ..TypeFacts::default()
        };
        let types = Types::from([("A".into(), facts(8, &[])), ("B".into(), facts(4, &[200, 300]))]);
        let of = |request: serde_json::Value| {
            let gpus: GpuRequest = serde_json::from_value(request).expect("gpus");
            configurations(&gpus, &types)
        };
        assert_eq!(of(json!({})), 1 + 3);
        assert_eq!(of(json!({"types": ["A"]})), 1);
        // 1, 2, 4 and 8 on one node.
        assert_eq!(of(json!({"max": 8})), 4 + 3 * 3);
        // 8 as 8, 2 x 4, 4 x 2 and 8 x 1.
        assert_eq!(of(json!({"min": 8, "maxNodes": 8})), 4 + 3 * 3);
        let all: Vec<i32> = (1..=64).collect();
        assert_eq!(of(json!({"max": 64, "counts": all, "maxNodes": 64, "types": ["A"]})), 172);
        // With B, 172 and 3 x 133 would be too many: on 1, 2, 4... nodes 39 and 3 x 23.
        assert_eq!(of(json!({"max": 64, "counts": all, "maxNodes": 64})), 39 + 3 * 23);
        // On two nodes of 8.
        let few = Types::from([("A".into(), TypeFacts { gpus: 16, per_node: 8, ..TypeFacts::default() })]);
        let request = serde_json::from_value(json!({"min": 8, "maxNodes": 8})).expect("gpus");
        assert_eq!(configurations(&request, &few), 2);
    }
}
