//! From a plan to a line.

use std::collections::BTreeMap;

use andreas_baselines::Memory;
use andreas_model::JobId;
use andreas_planner::{Decision, IntendedChange, Placement, Plan, Prices};
use schemars::generate::SchemaSettings;
use schemars::{JsonSchema, Schema, json_schema};
use serde::ser::{Serialize, SerializeMap, Serializer};
use serde_json::Value;

use super::wire::PlacementEntry;
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

/// What a line of a decision may hold besides the jobs.
pub fn schema() -> Schema {
    let mut generator = SchemaSettings::draft2020_12().into_generator();
    let placement = generator.subschema_for::<PlacementEntry>();
    let plan = generator.subschema_for::<Explanation<'_>>();
    let mut schema = json_schema!({
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Decision",
        "description": "One line out. Every other key is the name of a job: its placement, or null if it waits.",
        "type": "object",
        "properties": {
            "_plan": plan,
            "_error": {"description": "What was wrong with the line; it comes alone.", "type": "string"},
        },
        "additionalProperties": {"anyOf": [placement, {"type": "null"}]},
    });
    schema.insert("$defs".to_owned(), Value::Object(generator.take_definitions(true)));
    schema
}

/// How the decision was made, with `--explain`.
#[derive(serde::Serialize, JsonSchema)]
#[schemars(rename = "Explanation")]
struct Explanation<'a> {
    /// Name of the method.
    method: &'a str,
    /// Proven lower bound of `cost`.
    bound: Option<f64>,
    /// What the method minimized, money.
    cost: f64,
    /// `(cost - bound) / bound`.
    gap: Option<f64>,
    /// Part of what planning could save in this step that may be missed.
    missed_saving: Option<f64>,
    /// GPUs or watts that jobs ask for at the plan's prices over what is there, of those of which most is asked for.
    asked_over_available: Option<f64>,
    /// The method's bound was above the cost and is left out.
    #[serde(skip_serializing_if = "is_false")]
    #[schemars(default)]
    bound_invalid: bool,
    /// Number of constructions and moves tried.
    trials: u64,
    /// By job, a sentence.
    #[schemars(with = "BTreeMap<String, String>")]
    reasons: BTreeMap<&'a JobId, String>,
    /// Shadow prices, for a later state.
    #[schemars(with = "Option<Value>")]
    prices: Option<&'a Prices>,
    /// Changes that running jobs are expected to make later, for a later state.
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    #[schemars(with = "Vec<Value>", default)]
    intended: &'a [IntendedChange],
    /// Memory of the method, for a later state.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<Value>")]
    memory: Option<&'a Memory>,
}

fn is_false(value: &bool) -> bool {
    !value
}

impl<'a> Explanation<'a> {
    fn new(plan: &'a Plan, memory: Option<&'a Memory>) -> Self {
        Self {
            method: &plan.method,
            bound: plan.bound.map(|m| m.0),
            cost: plan.cost.0,
            gap: plan.gap,
            missed_saving: plan.missed_saving,
            asked_over_available: plan.asked_over_available,
            bound_invalid: plan.bound_invalid,
            trials: plan.trials,
            reasons: plan.jobs.iter().map(|(id, job)| (id, reason(job))).collect(),
            prices: plan.prices.as_ref(),
            intended: &plan.intended,
            memory,
        }
    }
}
