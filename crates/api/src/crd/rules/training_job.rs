//! Rules of a TrainingJob outside its pod template.

use super::Rule;

const KIND: &str = "TrainingJob";

/// A field of `spec` that cannot change once the job exists, and is always there: required, or with a default. On the field
/// itself: that costs the API server less than a rule on the spec, and the status is written often.
macro_rules! immutable {
    ($field:literal, $message:literal) => {
        Rule {
            kind: KIND,
            path: concat!("spec.", $field),
            rule: "self == oldSelf",
            message: $message,
            field_path: None,
        }
    };
}

/// A field that can neither come nor go; what it says is a rule of [`immutable`].
macro_rules! immutable_presence {
    ($field:literal, $message:literal) => {
        Rule {
            kind: KIND,
            path: "spec",
            rule: concat!("has(self.", $field, ") == has(oldSelf.", $field, ")"),
            message: $message,
            field_path: Some(concat!(".", $field)),
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
    },
    Rule {
        kind: KIND,
        path: "spec",
        rule: "!has(self.deadlineAfter) || !has(self.deadline)",
        message: "give deadline (an instant) or deadlineAfter (a duration from creation), not both",
        field_path: Some(".deadlineAfter"),
    },
    not_zero!("deadlineAfter"),
    not_zero!("startTimeout"),
    Rule {
        kind: KIND,
        path: "spec.startTimeout",
        rule: "duration(self) <= duration('4h')",
        message: "startTimeout must be at most 4h: an attempt that has not started holds its GPUs; large images are better pulled to the nodes before",
        field_path: None,
    },
    not_zero!("progressTimeout"),
    not_zero!("maxRunTime"),
    Rule {
        kind: KIND,
        path: "spec",
        rule: "!has(self.container) || self.template.spec.containers.exists(c, c.name == self.container)",
        message: "container must be the name of one of the template's containers",
        field_path: Some(".container"),
    },
    Rule {
        kind: KIND,
        path: "spec",
        rule: "self.rendezvous != 'Slurm' || (has(self.container) ? self.template.spec.containers.exists(c, c.name == self.container && has(c.command)) : has(self.template.spec.containers[0].command))",
        message: "rendezvous: Slurm needs the command of the container that trains: the batch script, for example [bash, -c, TEXT]",
        field_path: Some(".rendezvous"),
    },
    Rule {
        kind: KIND,
        path: "spec.profileRef.name",
        rule: "self.matches('^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$')",
        message: "profileRef.name must be the name of a TrainingProfile: lower-case letters, digits, '-' and '.'",
        field_path: None,
    },
    Rule {
        kind: KIND,
        path: "spec.gpus",
        rule: "!has(self.max) || self.min <= self.max",
        message: "gpus.min must not be greater than gpus.max",
        field_path: Some(".max"),
    },
    Rule {
        kind: KIND,
        path: "spec.gpus",
        rule: "!has(self.counts) || self.counts.all(c, c >= self.min && c <= (has(self.max) ? self.max : self.min))",
        message: "each of gpus.counts must lie between gpus.min and gpus.max (gpus.max is gpus.min when absent)",
        field_path: Some(".counts"),
    },
    Rule {
        kind: KIND,
        path: "spec.gpus",
        rule: "self.maxNodes <= (has(self.max) ? self.max : self.min)",
        message: "gpus.maxNodes must not be greater than gpus.max: every node of a gang gives at least one GPU",
        field_path: Some(".maxNodes"),
    },
    Rule {
        kind: KIND,
        path: "",
        // Comparing templates is dear and the status is written often. A write of the status cannot touch the spec, nor one of the
        // spec the status: where the phase differs, it is the status that is written, and the template is what it was.
        rule: "has(self.status) != has(oldSelf.status) || has(self.status) && self.status.phase != oldSelf.status.phase || self.spec.template == oldSelf.spec.template",
        message: "the template cannot change: delete the TrainingJob and apply it again (its checkpoint stays)",
        field_path: Some(".spec.template"),
    },
    immutable!("profileRef", "profileRef cannot change: delete the TrainingJob and apply it again"),
    immutable_presence!("profileRef", "profileRef cannot change: delete the TrainingJob and apply it again"),
    immutable!("checkpoint", "the checkpoint cannot change: delete the TrainingJob and apply it again"),
    immutable_presence!(
        "checkpoint",
        "the checkpoint cannot change: delete the TrainingJob and apply it again"
    ),
    immutable!("adopts", "the adopted job cannot change: ANDREAS makes a TrainingJob for each"),
    immutable_presence!("adopts", "the adopted job cannot change: ANDREAS makes a TrainingJob for each"),
    immutable!(
        "epochs",
        "epochs cannot change: progress is counted in them; delete the TrainingJob and apply it again"
    ),
    immutable!(
        "container",
        "the training container cannot change: delete the TrainingJob and apply it again"
    ),
    immutable_presence!(
        "container",
        "the training container cannot change: delete the TrainingJob and apply it again"
    ),
    immutable!("resourcesPer", "resourcesPer cannot change: delete the TrainingJob and apply it again"),
    immutable!("rendezvous", "rendezvous cannot change: delete the TrainingJob and apply it again"),
    immutable!("sharedMemoryMiB", "sharedMemoryMiB cannot change: delete the TrainingJob and apply it again"),
    immutable_presence!(
        "sharedMemoryMiB",
        "sharedMemoryMiB cannot change: delete the TrainingJob and apply it again"
    ),
    immutable!("profileMatching", "profileMatching cannot change: delete the TrainingJob and apply it again"),
];
