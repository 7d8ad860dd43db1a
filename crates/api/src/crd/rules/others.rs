//! Rules of the other kinds.

use super::{Example, Rule};

const POLICY: &str = "EnergyPolicy";

/// A duration of the policy that must not be zero: the group it is in (empty: none) and its name there.
macro_rules! not_zero {
    ($path:literal, $field:literal, $accepted:literal, $rejected:literal) => {
        Rule {
            kind: POLICY,
            path: $path,
            rule: concat!("self.", $field, ".matches('[1-9]')"),
            message: concat!($field, " must be longer than zero, for example 2m"),
            field_path: Some(concat!(".", $field)),
            accepted: Example::create($accepted),
            rejected: Example::create($rejected),
        }
    };
}

/// A time zone: the API server reads it from its own copy of the IANA database.
macro_rules! time_zone {
    ($path:literal, $accepted:literal, $rejected:literal) => {
        Rule {
            kind: POLICY,
            path: $path,
            rule: "timestamp('2026-01-01T00:00:00Z').getHours(self.timeZone) >= 0",
            message: "timeZone must be a name of the IANA database, for example Europe/Rome",
            field_path: None,
            accepted: Example::create($accepted),
            rejected: Example::create($rejected),
        }
    };
}

/// A decimal of the policy with bounds.
macro_rules! between {
    ($path:literal, $field:literal, $low:literal, $high:literal, $accepted:literal, $rejected:literal) => {
        Rule {
            kind: POLICY,
            path: $path,
            rule: concat!("double(self.", $field, ") >= ", $low, " && double(self.", $field, ") <= ", $high),
            message: concat!($field, " must be between ", $low, " and ", $high),
            field_path: Some(concat!(".", $field)),
            accepted: Example::create($accepted),
            rejected: Example::create($rejected),
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
    not_zero!("spec", "placementTimeout", "spec: {placementTimeout: 90s}", "spec: {placementTimeout: 0s}"),
    not_zero!(
        "spec.powerBudget",
        "enforceWithin",
        "spec: {powerBudget: {enforceWithin: 90s}}",
        "spec: {powerBudget: {enforceWithin: 0s}}"
    ),
    not_zero!(
        "spec.unknownJobs",
        "runTime",
        "spec: {unknownJobs: {runTime: 90s}}",
        "spec: {unknownJobs: {runTime: 0s}}"
    ),
    not_zero!(
        "spec.prices",
        "agingPeriod",
        "spec: {prices: {agingPeriod: 1h}}",
        "spec: {prices: {agingPeriod: 0s}}"
    ),
    between!("spec", "pue", "1.0", "5.0", "spec: {pue: '1.05'}", "spec: {pue: '0.9'}"),
    between!(
        "spec.prices",
        "turnaroundShare",
        "0.0",
        "1.0",
        "spec: {prices: {turnaroundShare: '0.25'}}",
        "spec: {prices: {turnaroundShare: '1.1'}}"
    ),
    time_zone!(
        "spec.prices.tariff",
        "spec: {prices: {tariff: {timeZone: Europe/Rome}}}",
        "spec: {prices: {tariff: {timeZone: Mars/Phobos}}}"
    ),
    time_zone!(
        "spec.powerBudget",
        "spec: {powerBudget: {timeZone: America/New_York}}",
        "spec: {powerBudget: {timeZone: Mars/Phobos}}"
    ),
    Rule {
        kind: POLICY,
        path: "spec.prices.tariff.windows[]",
        rule: "self.from != self.to",
        message: "a window must not end where it starts; for the whole day use spec.prices.energyPerKWh",
        field_path: Some(".to"),
        accepted: Example::create(
            "spec: {prices: {tariff: {windows: [{from: '22:00', to: '06:00', energyPerKWh: '0.09'}]}}}",
        ),
        rejected: Example::create(
            "spec: {prices: {tariff: {windows: [{from: '22:00', to: '22:00', energyPerKWh: '0.09'}]}}}",
        ),
    },
    Rule {
        kind: POLICY,
        path: "spec.powerBudget.windows[]",
        rule: "self.from != self.to",
        message: "a window must not end where it starts; for the whole day use spec.powerBudget.watts",
        field_path: Some(".to"),
        accepted: Example::create(
            "spec: {powerBudget: {windows: [{from: '17:00', to: '20:00', watts: 8000}]}}",
        ),
        rejected: Example::create(
            "spec: {powerBudget: {windows: [{from: '00:00', to: '00:00', watts: 8000}]}}",
        ),
    },
    Rule {
        kind: POLICY,
        path: "spec.prices.tariff",
        rule: "!has(self.windows) || self.windows.all(a, self.windows.exists_one(b, b.from == a.from))",
        message: "two windows of the tariff start at the same time",
        field_path: Some(".windows"),
        accepted: Example::create(
            "spec: {prices: {tariff: {windows: [{from: '06:00', to: '22:00', energyPerKWh: '2'}, {from: '22:00', to: '06:00', energyPerKWh: '1'}]}}}",
        ),
        rejected: Example::create(
            "spec: {prices: {tariff: {windows: [{from: '06:00', to: '22:00', energyPerKWh: '2'}, {from: '06:00', to: '08:00', energyPerKWh: '1'}]}}}",
        ),
    },
    Rule {
        kind: POLICY,
        path: "spec.powerBudget",
        rule: "!has(self.windows) || self.windows.all(a, self.windows.exists_one(b, b.from == a.from))",
        message: "two windows of the power budget start at the same time",
        field_path: Some(".windows"),
        accepted: Example::create(
            "spec: {powerBudget: {windows: [{from: '06:00', to: '22:00', watts: 2}, {from: '22:00', to: '06:00', watts: 1}]}}",
        ),
        rejected: Example::create(
            "spec: {powerBudget: {windows: [{from: '06:00', to: '22:00', watts: 2}, {from: '06:00', to: '08:00', watts: 1}]}}",
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
