//! What `kubectl get` prints, and the fields that `--field-selector` knows.

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::{
    CustomResourceColumnDefinition, SelectableField,
};

/// A column: heading, type, JSON path, wide (only with `-o wide`), what it says.
type Column = (&'static str, &'static str, &'static str, bool, &'static str);

// Instants in the future are columns of type `string`: kubectl prints a `date` that lies ahead as `<invalid>`.
// A row fits 120 characters with a name of 24.
const TRAINING_JOB: &[Column] = &[
    ("Phase", "string", ".status.phase", false, "Where the run is in its life"),
    ("Reason", "string", ".status.reason", false, "Why it waits, stops or failed; empty while it runs"),
    ("GPUs", "integer", ".status.allocation.gpus", false, "GPUs it holds"),
    ("Progress", "string", ".status.display.progress", false, "Part of the run that is done"),
    ("ETA", "string", ".status.prediction.finishTime", false, "Predicted end (median)"),
    (
        "On-time",
        "string",
        ".status.display.onTime",
        false,
        "Probability of ending before the deadline; Met or Missed after the end; empty without deadline",
    ),
    ("Age", "date", ".metadata.creationTimestamp", false, "Time since its creation"),
    ("GPU-type", "string", ".status.allocation.gpuType", true, "Type of the GPUs it holds"),
    ("Nodes", "string", ".status.display.nodes", true, "Nodes it runs on"),
    ("Deadline", "string", ".status.deadline", true, "When it should be done"),
    ("Weight", "integer", ".spec.weight", true, "How much lateness and turnaround count"),
    (
        "Energy",
        "string",
        ".status.display.energy",
        true,
        "Energy of its ended attempts: GPUs and their share of the nodes",
    ),
    ("Energy-cost", "string", ".status.display.energyCost", true, "Price of that energy"),
    (
        "Lateness-cost",
        "string",
        ".status.display.latenessCost",
        true,
        "What its lateness and turnaround count in plans, in the same currency; nobody pays it",
    ),
    (
        "Duration",
        "string",
        ".status.display.duration",
        true,
        "From its first start to its end; empty before the end",
    ),
];

const TRAINING_PROFILE: &[Column] = &[
    ("Model", "string", ".spec.features.modelFamily", false, "Name of the model"),
    ("Batch", "integer", ".spec.features.batchSize", false, "Samples of one batch over all GPUs"),
    ("Precision", "string", ".spec.features.precision", false, "Numeric precision"),
    ("Age", "date", ".metadata.creationTimestamp", false, "Since it was made"),
];

const ENERGY_POLICY: &[Column] = &[
    (
        "Budget-watts",
        "integer",
        ".spec.powerBudget.watts",
        false,
        "Power the cluster may draw, W; empty without a budget",
    ),
    ("Price", "string", ".spec.prices.energyPerKWh", false, "Price of a kWh outside the tariff's windows"),
    ("Currency", "string", ".spec.currency", false, "Label of all prices"),
    ("Limits", "string", ".spec.limits", false, "Whether power limits are set on GPUs that train"),
    ("Rest", "string", ".spec.rest.mode", false, "Whether GPUs without a job rest"),
    ("Age", "date", ".metadata.creationTimestamp", false, "Since it was made"),
];

const GPU_NODE: &[Column] = &[
    ("GPU-type", "string", ".spec.gpuType", false, "Type by which plans know its GPUs"),
    ("GPUs", "integer", ".status.totals.gpus", false, "GPUs that its agent sees; empty without an agent"),
    ("Held", "integer", ".status.totals.held", false, "Those that a pod holds"),
    ("Resting", "integer", ".status.totals.resting", false, "Those in low power"),
    (
        "Watts",
        "integer",
        ".status.totals.watts",
        false,
        "Draw of its GPUs when the agent last wrote: at once on a change of state, else at most each minute",
    ),
    (
        "Health",
        "string",
        ".status.totals.health",
        false,
        "Unhealthy where a GPU must not be used, Warning where one has a lesser problem",
    ),
    (
        "Excluded",
        "string",
        ".spec.excluded.reason",
        false,
        "Why its GPUs are not planned; empty where they are",
    ),
    ("Age", "date", ".metadata.creationTimestamp", false, "Since it was made"),
    ("Empty-since", "date", ".status.emptySince", true, "Since when no GPU is held"),
    ("Agent", "string", ".status.agentVersion", true, "Version of the node's agent"),
];

const NODE_POWER: &[Column] = &[
    ("Mode", "string", ".spec.mode", false, "Who decides: Auto, or On and Off by hand"),
    ("Wanted", "string", ".spec.wanted", false, "What is wanted with mode Auto"),
    ("State", "string", ".status.state", false, "Where the machine is on its way"),
    ("Since", "date", ".status.since", false, "Since when it is in that state"),
    ("Boot", "integer", ".status.bootSeconds", false, "How long a start takes, s (90th percentile)"),
    (
        "Kept-on-by",
        "string",
        ".status.keptOnBy",
        false,
        "Why it is on though it should be off; empty where it should not",
    ),
    ("Age", "date", ".metadata.creationTimestamp", false, "Since it was made"),
    ("Power", "string", ".status.power", true, "Last reading of its power"),
];

/// The columns of a kind, in order.
pub fn printed(kind: &str) -> Vec<CustomResourceColumnDefinition> {
    let columns = match kind {
        "TrainingJob" => TRAINING_JOB,
        "TrainingProfile" => TRAINING_PROFILE,
        "EnergyPolicy" => ENERGY_POLICY,
        "GpuNode" => GPU_NODE,
        "NodePower" => NODE_POWER,
        _ => &[],
    };
    columns
        .iter()
        .map(|&(name, type_, json_path, wide, description)| CustomResourceColumnDefinition {
            name: name.into(),
            type_: type_.into(),
            json_path: json_path.into(),
            description: Some(description.into()),
            priority: wide.then_some(1),
            format: None,
        })
        .collect()
}

/// The fields of a kind that `--field-selector` and selecting watches may name.
pub fn selectable(kind: &str) -> Vec<SelectableField> {
    let paths: &[&str] = match kind {
        "TrainingJob" => &[".spec.profileRef.name", ".spec.suspend", ".status.phase", ".status.reason"],
        "TrainingProfile" => &[".spec.features.modelFamily"],
        _ => &[],
    };
    paths.iter().map(|path| SelectableField { json_path: (*path).into() }).collect()
}
