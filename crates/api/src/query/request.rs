//! Questions.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use serde::{Deserialize, Serialize};

use crate::DurationText;

/// A TrainingJob as a user writes it; only its name, one label and its spec are read.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct JobObject {
    /// Name and label. A job of that name in the namespace is replaced in the forecast.
    #[serde(default)]
    pub metadata: JobMetadata,
    /// `spec` of a TrainingJob.
    pub spec: serde_json::Value,
}

/// What is read of a posted job's metadata.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobMetadata {
    /// Name of the job; `asked` when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Labels of the job; only `andreas.dev/profile` is read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub labels: Option<BTreeMap<String, String>>,
}

/// Nodes that do not exist.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct AddedNodes {
    /// Number of nodes.
    pub count: u32,
    /// GPU type: a type of the cluster, or a part of its name that only one type has.
    pub gpu_type: String,
    /// GPUs of each node.
    pub gpus: u32,
}

/// Another spec of a job of the namespace. It keeps what it has done, and what it holds.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ChangedJob {
    /// Its name.
    pub name: String,
    /// Merge patch of its `spec`: of `deadline`, `deadlineAfter`, `weight` and `gpus`.
    pub patch: serde_json::Value,
}

/// Changes that are not made. At least one is needed; all of them together are one change.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct WhatIfRequest {
    /// A job that is submitted now.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub job: Option<JobObject>,
    /// A job whose spec is changed; not together with `job`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub changed: Option<ChangedJob>,
    /// Nodes that are added.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub nodes: Vec<AddedNodes>,
    /// Power budget, W, at all times of day.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub budget_watts: Option<i64>,
    /// Name of a job of the namespace that is deleted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub without: Option<String>,
}

impl WhatIfRequest {
    /// Whether it changes nothing.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// A job and its deadline.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct CanRequest {
    /// The job, as if it were submitted now.
    pub job: JobObject,
    /// Deadline; that of the job's spec when both are absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deadline: Option<Time>,
    /// Deadline counted from now.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deadline_after: Option<DurationText>,
}
