//! Rules of the other kinds.

use super::Rule;

const POLICY: &str = "EnergyPolicy";

/// A duration of the policy that must not be zero: the group it is in (empty: none) and its name there.
macro_rules! not_zero {
    ($path:literal, $field:literal) => {
        Rule {
            kind: POLICY,
            path: $path,
            rule: concat!("self.", $field, ".matches('[1-9]')"),
            message: concat!($field, " must be longer than zero, for example 2m"),
            field_path: Some(concat!(".", $field)),
        }
    };
}

/// A time zone: the API server reads it from its own copy of the IANA database.
macro_rules! time_zone {
    ($path:literal) => {
        Rule {
            kind: POLICY,
            path: $path,
            rule: "timestamp('2026-01-01T00:00:00Z').getHours(self.timeZone) >= 0",
            message: "timeZone must be a name of the IANA database, for example Europe/Rome",
            field_path: None,
        }
    };
}

/// A decimal of the policy with bounds.
macro_rules! between {
    ($path:literal, $field:literal, $low:literal, $high:literal) => {
        Rule {
            kind: POLICY,
            path: $path,
            rule: concat!("double(self.", $field, ") >= ", $low, " && double(self.", $field, ") <= ", $high),
            message: concat!($field, " must be between ", $low, " and ", $high),
            field_path: Some(concat!(".", $field)),
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
    },
    not_zero!("spec", "placementTimeout"),
    not_zero!("spec.powerBudget", "enforceWithin"),
    not_zero!("spec.unknownJobs", "runTime"),
    not_zero!("spec.prices", "agingPeriod"),
    between!("spec", "pue", "1.0", "5.0"),
    between!("spec.prices", "turnaroundShare", "0.0", "1.0"),
    time_zone!("spec.prices.tariff"),
    time_zone!("spec.powerBudget"),
    Rule {
        kind: POLICY,
        path: "spec.prices.tariff.windows[]",
        rule: "self.from != self.to",
        message: "a window must not end where it starts; for the whole day use spec.prices.energyPerKWh",
        field_path: Some(".to"),
    },
    Rule {
        kind: POLICY,
        path: "spec.powerBudget.windows[]",
        rule: "self.from != self.to",
        message: "a window must not end where it starts; for the whole day use spec.powerBudget.watts",
        field_path: Some(".to"),
    },
    Rule {
        kind: POLICY,
        path: "spec.prices.tariff",
        rule: "!has(self.windows) || self.windows.all(a, self.windows.exists_one(b, b.from == a.from))",
        message: "two windows of the tariff start at the same time",
        field_path: Some(".windows"),
    },
    Rule {
        kind: POLICY,
        path: "spec.powerBudget",
        rule: "!has(self.windows) || self.windows.all(a, self.windows.exists_one(b, b.from == a.from))",
        message: "two windows of the power budget start at the same time",
        field_path: Some(".windows"),
    },
    Rule {
        kind: POLICY,
        path: "spec.gpuTypes[]",
        rule: "self.idleWatts <= self.maxWatts",
        message: "idleWatts must not be greater than maxWatts",
        field_path: Some(".maxWatts"),
    },
    Rule {
        kind: "TrainingProfile",
        path: "spec.measurements[]",
        rule: "self.gpus >= self.nodes && self.gpus % self.nodes == 0",
        message: "gpus is the total over all nodes and the same on each: it must be a multiple of nodes",
        field_path: Some(".nodes"),
    },
    Rule {
        kind: "NodePower",
        path: "spec",
        rule: "[has(self.redfish), has(self.bareMetalHost), has(self.webhook)].filter(given, given).size() == 1",
        message: "exactly one of redfish, bareMetalHost and webhook must be given",
        field_path: None,
    },
    Rule {
        kind: "NodePower",
        path: "spec.redfish",
        rule: "!has(self.caSecret) || !has(self.fingerprint)",
        message: "caSecret and fingerprint exclude each other: a fingerprint accepts one certificate alone",
        field_path: Some(".fingerprint"),
    },
];
