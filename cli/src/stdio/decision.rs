//! From a plan to a line.

use std::collections::BTreeMap;

use andreas_baselines::Memory;
use andreas_core::JobId;
use andreas_planner::{Decision, Placement, Plan, Prices};
use serde::ser::{Serialize, SerializeMap, Serializer};

use crate::reason::reason;

/// The line that says what was wrong.
pub fn error(text: &str) -> String {
    serde_json::json!({ "_error": text }).to_string()
}

/// The line of a plan.
pub struct DecisionLine<'a> {
    /// The plan.
    pub plan: &'a Plan,
    /// State of the method for the next decision; `None` for stateless methods.
    pub memory: Option<&'a Memory>,
    /// Whether it explains itself.
    pub explain: bool,
}

impl Serialize for DecisionLine<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        for (id, job) in &self.plan.jobs {
            match &job.decision {
                Decision::Run(place) => map.serialize_entry(id, &PlacementLine(place))?,
                Decision::Wait { .. } => map.serialize_entry(id, &())?,
            }
        }
        if self.explain {
            map.serialize_entry("_plan", &Explanation::new(self.plan, self.memory))?;
        }
        map.end()
    }
}

struct PlacementLine<'a>(&'a Placement);

impl Serialize for PlacementLine<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        match self.0.nodes.as_slice() {
            [node] => map.serialize_entry("node", node)?,
            nodes => map.serialize_entry("nodes", nodes)?,
        }
        map.serialize_entry("gpus", &self.0.gpus_per_node)?;
        if let Some(limit) = self.0.limit {
            map.serialize_entry("limit_w", &limit)?;
        }
        map.end()
    }
}

/// `_plan`.
#[derive(serde::Serialize)]
struct Explanation<'a> {
    method: &'a str,
    bound: Option<f64>,
    cost: f64,
    gap: Option<f64>,
    trials: u64,
    reasons: BTreeMap<&'a JobId, String>,
    prices: Option<&'a Prices>,
    #[serde(skip_serializing_if = "Option::is_none")]
    memory: Option<&'a Memory>,
}

impl<'a> Explanation<'a> {
    fn new(plan: &'a Plan, memory: Option<&'a Memory>) -> Self {
        Self {
            method: &plan.method,
            bound: plan.bound.map(|m| m.0),
            cost: plan.cost.0,
            gap: plan.gap,
            trials: plan.trials,
            reasons: plan.jobs.iter().map(|(id, job)| (id, reason(job))).collect(),
            prices: plan.prices.as_ref(),
            memory,
        }
    }
}
