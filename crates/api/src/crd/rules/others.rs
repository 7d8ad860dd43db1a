//! Rules of the other kinds.

use super::{Example, Rule};

const POLICY: &str = "EnergyPolicy";

/// A duration of the policy that must not be zero.
macro_rules! not_zero {
    ($field:literal) => {
        Rule {
            kind: POLICY,
            path: "spec",
            rule: concat!("self.", $field, ".matches('[1-9]')"),
            message: concat!($field, " must be longer than zero, for example 2m"),
            field_path: Some(concat!(".", $field)),
            accepted: Example::create(concat!("spec: {", $field, ": 90s}")),
            rejected: Example::create(concat!("spec: {", $field, ": 0s}")),
        }
    };
}

pub(super) const RULES: &[Rule] = &[
    Rule {
        kind: POLICY,
        path: "",
        rule: "self.metadata.name == 'default'",
        message: "there is one EnergyPolicy, and its name is default",
        field_path: None,
        accepted: Example::create("metadata: {name: default}"),
        rejected: Example::create("metadata: {name: night}"),
    },
    not_zero!("placementTimeout"),
    not_zero!("enforceWithin"),
    not_zero!("defaultRunTime"),
    Rule {
        kind: POLICY,
        path: "spec.tariff[]",
        rule: "self.from != self.to",
        message: "a window must not end where it starts; for the whole day use spec.pricePerKWhMicros",
        field_path: Some(".to"),
        accepted: Example::create("spec: {tariff: [{from: '22:00', to: '06:00', pricePerKWhMicros: 90000}]}"),
        rejected: Example::create("spec: {tariff: [{from: '22:00', to: '22:00', pricePerKWhMicros: 90000}]}"),
    },
    Rule {
        kind: POLICY,
        path: "spec.windows[]",
        rule: "self.from != self.to",
        message: "a window must not end where it starts; for the whole day use spec.powerBudgetWatts",
        field_path: Some(".to"),
        accepted: Example::create("spec: {windows: [{from: '17:00', to: '20:00', powerBudgetWatts: 8000}]}"),
        rejected: Example::create("spec: {windows: [{from: '00:00', to: '00:00', powerBudgetWatts: 8000}]}"),
    },
    Rule {
        kind: POLICY,
        path: "spec",
        rule: "!has(self.tariff) || self.tariff.all(a, self.tariff.exists_one(b, b.from == a.from))",
        message: "two windows of spec.tariff start at the same time",
        field_path: Some(".tariff"),
        accepted: Example::create(
            "spec: {tariff: [{from: '06:00', to: '22:00', pricePerKWhMicros: 2}, {from: '22:00', to: '06:00', pricePerKWhMicros: 1}]}",
        ),
        rejected: Example::create(
            "spec: {tariff: [{from: '06:00', to: '22:00', pricePerKWhMicros: 2}, {from: '06:00', to: '08:00', pricePerKWhMicros: 1}]}",
        ),
    },
    Rule {
        kind: POLICY,
        path: "spec",
        rule: "!has(self.windows) || self.windows.all(a, self.windows.exists_one(b, b.from == a.from))",
        message: "two windows of spec.windows start at the same time",
        field_path: Some(".windows"),
        accepted: Example::create(
            "spec: {windows: [{from: '06:00', to: '22:00', powerBudgetWatts: 2}, {from: '22:00', to: '06:00', powerBudgetWatts: 1}]}",
        ),
        rejected: Example::create(
            "spec: {windows: [{from: '06:00', to: '22:00', powerBudgetWatts: 2}, {from: '06:00', to: '08:00', powerBudgetWatts: 1}]}",
        ),
    },
    Rule {
        kind: POLICY,
        path: "spec.gpuTypes[]",
        rule: "self.idleWatts <= self.maxWatts",
        message: "idleWatts must not be greater than maxWatts",
        field_path: Some(".maxWatts"),
        accepted: Example::create(
            "spec: {gpuTypes: [{name: Tesla-V100-SXM2-32GB, idleWatts: 40, maxWatts: 300}]}",
        ),
        rejected: Example::create(
            "spec: {gpuTypes: [{name: Tesla-V100-SXM2-32GB, idleWatts: 300, maxWatts: 40}]}",
        ),
    },
    Rule {
        kind: "TrainingProfile",
        path: "spec.measurements[]",
        rule: "self.gpus >= self.nodes && self.gpus % self.nodes == 0",
        message: "gpus is the total over all nodes and the same on each: it must be a multiple of nodes",
        field_path: Some(".nodes"),
        accepted: Example::create(
            "spec: {measurements: [{gpuType: A100, gpus: 16, nodes: 2, millisPerEpoch: 60000}]}",
        ),
        rejected: Example::create(
            "spec: {measurements: [{gpuType: A100, gpus: 9, nodes: 2, millisPerEpoch: 60000}]}",
        ),
    },
];
