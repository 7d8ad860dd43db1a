//! Rules of a TrainingJob outside its pod template.

use super::{Example, Rule};

const KIND: &str = "TrainingJob";

/// A field of `spec` that cannot change once the job exists, and is always there: required, or with a default. On the field
/// itself: that costs the API server less than a rule on the spec, and the status is written often.
macro_rules! immutable {
    ($field:literal, $message:literal, $same:expr, $changed:expr) => {
        Rule {
            kind: KIND,
            path: concat!("spec.", $field),
            rule: "self == oldSelf",
            message: $message,
            field_path: None,
            accepted: $same,
            rejected: $changed,
        }
    };
}

/// A field that can neither come nor go; what it says is a rule of [`immutable`].
macro_rules! immutable_presence {
    ($field:literal, $message:literal, $same:expr, $changed:expr) => {
        Rule {
            kind: KIND,
            path: "spec",
            rule: concat!("has(self.", $field, ") == has(oldSelf.", $field, ")"),
            message: $message,
            field_path: Some(concat!(".", $field)),
            accepted: $same,
            rejected: $changed,
        }
    };
}

/// A duration that must not be zero.
macro_rules! not_zero {
    ($field:literal) => {
        Rule {
            kind: KIND,
            path: concat!("spec.", $field),
            rule: "self.matches('[1-9]')",
            message: concat!($field, " must be longer than zero, for example 15m"),
            field_path: None,
            accepted: Example::create(concat!("spec: {", $field, ": 10m}")),
            rejected: Example::create(concat!("spec: {", $field, ": 0h0m}")),
        }
    };
}

pub(super) const RULES: &[Rule] = &[
    Rule {
        kind: KIND,
        path: "",
        // Longer than 253: refused by the API server itself, in its own words.
        rule: "self.metadata.name.size() > 253 || self.metadata.name.size() <= 48 && self.metadata.name.matches('^[a-z]([-a-z0-9]*[a-z0-9])?$')",
        message: "the name becomes host names: at most 48 characters, lower-case letters, digits and '-', starting with a letter and ending with a letter or digit (DNS-1035)",
        field_path: None,
        accepted: Example::create("metadata: {name: a-name-of-48-characters-that-ends-with-a-digit-8}"),
        rejected: Example::create("metadata: {name: 0-starts-with-a-digit}"),
    },
    Rule {
        kind: KIND,
        path: "spec",
        rule: "!has(self.deadlineAfter) || !has(self.deadline)",
        message: "give deadline (an instant) or deadlineAfter (a duration from creation), not both",
        field_path: Some(".deadlineAfter"),
        accepted: Example::create("spec: {deadlineAfter: 36h}"),
        rejected: Example::create("spec: {deadline: '2999-01-01T00:00:00Z', deadlineAfter: 36h}"),
    },
    not_zero!("deadlineAfter"),
    not_zero!("startTimeout"),
    Rule {
        kind: KIND,
        path: "spec.startTimeout",
        rule: "duration(self) <= duration('4h')",
        message: "startTimeout must be at most 4h: an attempt that has not started holds its GPUs; large images are better pulled to the nodes before",
        field_path: None,
        accepted: Example::create("spec: {startTimeout: 3h60m}"),
        rejected: Example::create("spec: {startTimeout: 24h}"),
    },
    not_zero!("progressTimeout"),
    not_zero!("maxRunTime"),
    Rule {
        kind: KIND,
        path: "spec",
        rule: "!has(self.container) || self.template.spec.containers.exists(c, c.name == self.container)",
        message: "container must be the name of one of the template's containers",
        field_path: Some(".container"),
        accepted: Example::create("spec: {container: trainer}"),
        rejected: Example::create("spec: {container: nobody}"),
    },
    Rule {
        kind: KIND,
        path: "spec",
        rule: "self.rendezvous != 'Slurm' || (has(self.container) ? self.template.spec.containers.exists(c, c.name == self.container && has(c.command)) : has(self.template.spec.containers[0].command))",
        message: "rendezvous: Slurm needs the command of the container that trains: the batch script, for example [bash, -c, TEXT]",
        field_path: Some(".rendezvous"),
        accepted: Example::create(
            "spec: {rendezvous: Slurm, template: {spec: {containers: [{name: trainer, image: example.org/trainer, command: [bash, -c, srun hostname]}]}}}",
        ),
        rejected: Example::create("spec: {rendezvous: Slurm}"),
    },
    Rule {
        kind: KIND,
        path: "spec.profileRef.name",
        rule: "self.matches('^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$')",
        message: "profileRef.name must be the name of a TrainingProfile: lower-case letters, digits, '-' and '.'",
        field_path: None,
        accepted: Example::create("spec: {profileRef: {name: resnet50-imagenet.b256}}"),
        rejected: Example::create("spec: {profileRef: {name: ResNet 50}}"),
    },
    Rule {
        kind: KIND,
        path: "spec.gpus",
        rule: "!has(self.max) || self.min <= self.max",
        message: "gpus.min must not be greater than gpus.max",
        field_path: Some(".max"),
        accepted: Example::create("spec: {gpus: {min: 2, max: 8}}"),
        rejected: Example::create("spec: {gpus: {min: 8, max: 2}}"),
    },
    Rule {
        kind: KIND,
        path: "spec.gpus",
        rule: "!has(self.counts) || self.counts.all(c, c >= self.min && c <= (has(self.max) ? self.max : self.min))",
        message: "each of gpus.counts must lie between gpus.min and gpus.max (gpus.max is gpus.min when absent)",
        field_path: Some(".counts"),
        accepted: Example::create("spec: {gpus: {min: 1, max: 6, counts: [1, 3, 6]}}"),
        rejected: Example::create("spec: {gpus: {min: 2, max: 6, counts: [1, 3, 6]}}"),
    },
    Rule {
        kind: KIND,
        path: "spec.gpus",
        rule: "self.maxNodes <= (has(self.max) ? self.max : self.min)",
        message: "gpus.maxNodes must not be greater than gpus.max: every node of a gang gives at least one GPU",
        field_path: Some(".maxNodes"),
        accepted: Example::create("spec: {gpus: {min: 1, max: 16, maxNodes: 2}}"),
        rejected: Example::create("spec: {gpus: {min: 1, max: 2, maxNodes: 4}}"),
    },
    Rule {
        kind: KIND,
        path: "",
        // Comparing templates is dear and the status is written often. A write of the status cannot touch the spec, nor one of the
        // spec the status: where the phase differs, it is the status that is written, and the template is what it was.
        rule: "has(self.status) != has(oldSelf.status) || has(self.status) && self.status.phase != oldSelf.status.phase || self.spec.template == oldSelf.spec.template",
        message: "the template cannot change: delete the TrainingJob and apply it again (its checkpoint stays)",
        field_path: Some(".spec.template"),
        accepted: Example::create("spec: {weight: 1}").then("spec: {weight: 2}"),
        rejected: Example::create("")
            .then("spec: {template: {spec: {containers: [{name: trainer, image: example.org/other}]}}}"),
    },
    immutable!(
        "profileRef",
        "profileRef cannot change: delete the TrainingJob and apply it again",
        Example::create("spec: {profileRef: {name: bert}}").then("spec: {suspend: true}"),
        Example::create("spec: {profileRef: {name: bert}}").then("spec: {profileRef: {name: gpt}}")
    ),
    immutable_presence!(
        "profileRef",
        "profileRef cannot change: delete the TrainingJob and apply it again",
        Example::create("").then("spec: {suspend: true}"),
        Example::create("").then("spec: {profileRef: {name: bert}}")
    ),
    immutable!(
        "checkpoint",
        "the checkpoint cannot change: delete the TrainingJob and apply it again",
        Example::create("spec: {checkpoint: {claimName: models}}").then("spec: {deadlineAfter: 2h}"),
        Example::create("spec: {checkpoint: {claimName: models}}")
            .then("spec: {checkpoint: {graceSeconds: 5}}")
    ),
    immutable_presence!(
        "checkpoint",
        "the checkpoint cannot change: delete the TrainingJob and apply it again",
        Example::create("").then("spec: {deadlineAfter: 2h}"),
        Example::create("spec: {checkpoint: {claimName: models}}").then("spec: {checkpoint: null}")
    ),
    immutable!(
        "adopts",
        "the adopted job cannot change: ANDREAS makes a TrainingJob for each",
        Example::create(
            "spec: {adopts: {apiVersion: batch/v1, kind: Job, name: a, uid: u, pods: 1}}"
        )
        .then("spec: {weight: 20}"),
        Example::create(
            "spec: {adopts: {apiVersion: batch/v1, kind: Job, name: a, uid: u, pods: 1}}"
        )
        .then("spec: {adopts: {name: b}}")
    ),
    immutable_presence!(
        "adopts",
        "the adopted job cannot change: ANDREAS makes a TrainingJob for each",
        Example::create("").then("spec: {weight: 20}"),
        Example::create("")
            .then("spec: {adopts: {apiVersion: batch/v1, kind: Job, name: a, uid: u, pods: 1}}")
    ),
    immutable!(
        "epochs",
        "epochs cannot change: progress is counted in them; delete the TrainingJob and apply it again",
        Example::create("spec: {epochs: 90}").then("spec: {gpus: {min: 2}}"),
        Example::create("spec: {epochs: 90}").then("spec: {epochs: null}")
    ),
    immutable!(
        "container",
        "the training container cannot change: delete the TrainingJob and apply it again",
        Example::create("spec: {container: trainer}").then("spec: {retries: 0}"),
        Example::create(
            "spec: {container: trainer, template: {spec: {containers: [{name: trainer, image: example.org/a}, {name: log, image: example.org/b}]}}}"
        )
        .then("spec: {container: log}")
    ),
    immutable_presence!(
        "container",
        "the training container cannot change: delete the TrainingJob and apply it again",
        Example::create("").then("spec: {retries: 0}"),
        Example::create("").then("spec: {container: trainer}")
    ),
    immutable!(
        "resourcesPer",
        "resourcesPer cannot change: delete the TrainingJob and apply it again",
        Example::create("spec: {resourcesPer: Gpu}").then("spec: {preemption: Never}"),
        Example::create("").then("spec: {resourcesPer: Gpu}")
    ),
    immutable!(
        "rendezvous",
        "rendezvous cannot change: delete the TrainingJob and apply it again",
        Example::create("spec: {rendezvous: Env}").then("spec: {weight: 3}"),
        Example::create("").then("spec: {rendezvous: Env}")
    ),
    immutable!(
        "sharedMemoryMiB",
        "sharedMemoryMiB cannot change: delete the TrainingJob and apply it again",
        Example::create("spec: {sharedMemoryMiB: 1024}").then("spec: {weight: 3}"),
        Example::create("spec: {sharedMemoryMiB: 1024}").then("spec: {sharedMemoryMiB: 2048}")
    ),
    immutable_presence!(
        "sharedMemoryMiB",
        "sharedMemoryMiB cannot change: delete the TrainingJob and apply it again",
        Example::create("").then("spec: {weight: 3}"),
        Example::create("").then("spec: {sharedMemoryMiB: 1024}")
    ),
    immutable!(
        "profileMatching",
        "profileMatching cannot change: delete the TrainingJob and apply it again",
        Example::create("spec: {profileMatching: 'Off'}").then("spec: {weight: 3}"),
        Example::create("").then("spec: {profileMatching: 'Off'}")
    ),
];
