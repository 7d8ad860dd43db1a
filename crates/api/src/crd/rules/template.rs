//! What a user may not say in the pod template, each with what to use instead.
//!
//! Each rule is on the field itself and not on what holds it: the API server evaluates it where the field is given, that is
//! hardly ever. On a pod's spec every `has(self.field)` would cost a copy of the schema of all its fields, with each write of
//! the status too; such rules were a fifth of what the API server spent on a job.

use super::Rule;

const KIND: &str = "TrainingJob";

/// A field of the pod that may not be given.
macro_rules! refused {
    ($field:literal, $message:literal) => {
        Rule {
            kind: KIND,
            path: concat!("spec.template.spec.", $field),
            rule: "false",
            message: $message,
            field_path: None,
        }
    };
}

/// A rule on the requests or limits of every container of a list.
macro_rules! no_gpus {
    ($list:literal, $amounts:literal) => {
        Rule {
            kind: KIND,
            path: concat!("spec.template.spec.", $list, "[].resources.", $amounts),
            rule: "!self.exists(k, k == 'nvidia.com/gpu' || k.startsWith('nvidia.com/gpu.') || k.startsWith('nvidia.com/mig-'))",
            message: "GPU counts are set by ANDREAS: remove nvidia.com/gpu and use spec.gpus (min, max, counts, types)",
            field_path: None,
        }
    };
}

/// Ways around the device plug-in to GPUs that others have: NVIDIA's runtime gives what its variable, these mounts or CDI's annotations name.
macro_rules! no_foreign_devices {
    ($field:literal, $rule:expr) => {
        Rule {
            kind: KIND,
            path: concat!("spec.template.", $field),
            rule: $rule,
            message: "NVIDIA_VISIBLE_DEVICES (but void, none and empty), mounts below /var/run/nvidia-container-devices and annotations under \
                      cdi.k8s.io/ would give a container GPUs that are others': remove them, and use spec.gpus",
            field_path: None,
        }
    };
}

/// A field of every container that may not be given.
macro_rules! refused_in_container {
    ($field:literal) => {
        Rule {
            kind: KIND,
            path: concat!("spec.template.spec.containers[].", $field),
            rule: "false",
            message: concat!(
                $field,
                " of a container would repair one member of a gang in place: remove it and use spec.retries (native \
                 sidecars, that is initContainers with restartPolicy Always, are fine)"
            ),
            field_path: None,
        }
    };
}

/// Labels or annotations of the pods that are ours to set.
macro_rules! not_ours {
    ($map:literal) => {
        Rule {
            kind: KIND,
            path: concat!("spec.template.metadata.", $map),
            rule: "!self.exists(k, k.startsWith('andreas.dev/'))",
            message: concat!($map, " under andreas.dev/ are set by ANDREAS: use a prefix of your own"),
            field_path: None,
        }
    };
}

const VISIBLE: &str = "!self.exists(e, e.name == 'NVIDIA_VISIBLE_DEVICES' && (has(e.valueFrom) || has(e.value) && \
                       !(e.value in ['', 'void', 'none'])))";
const MOUNTS: &str = "!self.exists(m, m.mountPath.contains('nvidia-container-devices'))";

pub(super) const RULES: &[Rule] = &[
    not_ours!("labels"),
    not_ours!("annotations"),
    refused!("priorityClassName", "priorityClassName is set by ANDREAS: use spec.weight and spec.deadline"),
    refused!("priority", "priority is set by ANDREAS: use spec.weight and spec.deadline"),
    refused!("preemptionPolicy", "preemptionPolicy is set by ANDREAS: use spec.preemption"),
    refused!("schedulerName", "schedulerName is set by ANDREAS: remove it"),
    refused!(
        "nodeName",
        "nodeName is chosen by ANDREAS: use nodeSelector or affinity in the template, or spec.gpus.types"
    ),
    refused!(
        "resourceClaims",
        "devices of resource claims are not planned: use spec.gpus for GPUs, and extended resources for other devices"
    ),
    refused!("schedulingGates", "schedulingGates would hold members of a gang one by one: use spec.suspend"),
    refused!(
        "schedulingGroup",
        "schedulingGroup is not needed: ANDREAS starts gangs as a whole; use spec.gpus.maxNodes"
    ),
    refused!(
        "hostname",
        "hostname is set by ANDREAS so that the members of a gang find each other: use the environment variable PET_MASTER_ADDR"
    ),
    refused!(
        "hostnameOverride",
        "hostnameOverride would hide the members of a gang from each other: use the environment variable PET_MASTER_ADDR"
    ),
    refused!(
        "subdomain",
        "subdomain is set by ANDREAS so that the members of a gang find each other: use the environment variable PET_MASTER_ADDR"
    ),
    refused!(
        "activeDeadlineSeconds",
        "activeDeadlineSeconds would count against stops and moves: use spec.maxRunTime"
    ),
    refused!(
        "terminationGracePeriodSeconds",
        "terminationGracePeriodSeconds is set by ANDREAS: use spec.checkpoint.graceSeconds"
    ),
    Rule {
        kind: KIND,
        path: "spec.template.spec.restartPolicy",
        rule: "self == 'Never'",
        message: "restartPolicy must be Never or absent: a gang is started again as a whole; use spec.retries",
        field_path: None,
    },
    refused_in_container!("restartPolicy"),
    refused_in_container!("restartPolicyRules"),
    no_gpus!("containers", "limits"),
    no_gpus!("containers", "requests"),
    no_gpus!("initContainers", "limits"),
    no_gpus!("initContainers", "requests"),
    no_foreign_devices!("metadata.annotations", "!self.exists(k, k.startsWith('cdi.k8s.io/'))"),
    no_foreign_devices!("spec.containers[].env", VISIBLE),
    no_foreign_devices!("spec.initContainers[].env", VISIBLE),
    no_foreign_devices!("spec.containers[].volumeMounts", MOUNTS),
    no_foreign_devices!("spec.initContainers[].volumeMounts", MOUNTS),
];
