//! What a user may not say in the pod template, each with what to use instead.

use super::{Example, Rule};

const KIND: &str = "TrainingJob";
const POD: &str = "spec.template.spec";

/// A field of the pod that may not be given.
macro_rules! refused {
    ($field:literal: $value:literal, $message:literal) => {
        Rule {
            kind: KIND,
            path: POD,
            rule: concat!("!has(self.", $field, ")"),
            message: $message,
            field_path: Some(concat!(".", $field)),
            accepted: Example::create("spec: {template: {spec: {restartPolicy: Never}}}"),
            rejected: Example::create(concat!("spec: {template: {spec: {", $field, ": ", $value, "}}}")),
        }
    };
}

/// A rule on the requests and limits of every container of a list.
macro_rules! no_gpus {
    ($list:literal, $accepted:literal, $rejected:literal) => {
        Rule {
            kind: KIND,
            path: concat!("spec.template.spec.", $list, "[]"),
            rule: "!has(self.resources) || (\
                   (!has(self.resources.limits) || !self.resources.limits.exists(k, k == 'nvidia.com/gpu' || k.startsWith('nvidia.com/gpu.') || k.startsWith('nvidia.com/mig-'))) && \
                   (!has(self.resources.requests) || !self.resources.requests.exists(k, k == 'nvidia.com/gpu' || k.startsWith('nvidia.com/gpu.') || k.startsWith('nvidia.com/mig-'))))",
            message: "GPU counts are set by ANDREAS: remove nvidia.com/gpu and use spec.gpus (min, max, counts, types)",
            field_path: Some(".resources"),
            accepted: Example::create($accepted),
            rejected: Example::create($rejected),
        }
    };
}

/// A field of an ordinary container that may not be given.
macro_rules! refused_in_container {
    ($field:literal: $value:literal) => {
        Rule {
            kind: KIND,
            path: "spec.template.spec.containers[]",
            rule: concat!("!has(self.", $field, ")"),
            message: concat!(
                $field,
                " of a container would repair one member of a gang in place: remove it and use spec.retries (native \
                 sidecars, that is initContainers with restartPolicy Always, are fine)"
            ),
            field_path: Some(concat!(".", $field)),
            accepted: Example::create(
                "spec: {template: {spec: {initContainers: [{name: proxy, image: example.org/proxy, restartPolicy: Always}]}}}",
            ),
            rejected: Example::create(concat!(
                "spec: {template: {spec: {containers: [{name: trainer, image: example.org/trainer, ",
                $field,
                ": ",
                $value,
                "}]}}}"
            )),
        }
    };
}

/// Labels or annotations of the pods that are ours to set.
macro_rules! not_ours {
    ($map:literal) => {
        Rule {
            kind: KIND,
            path: "spec.template.metadata",
            rule: concat!(
                "!has(self.",
                $map,
                ") || !self.",
                $map,
                ".exists(k, k.startsWith('andreas.dev/'))"
            ),
            message: concat!($map, " under andreas.dev/ are set by ANDREAS: use a prefix of your own"),
            field_path: Some(concat!(".", $map)),
            accepted: Example::create(concat!(
                "spec: {template: {metadata: {",
                $map,
                ": {example.org/team: vision}}}}"
            )),
            rejected: Example::create(concat!(
                "spec: {template: {metadata: {",
                $map,
                ": {andreas.dev/job: other}}}}"
            )),
        }
    };
}

pub(super) const RULES: &[Rule] = &[
    not_ours!("labels"),
    not_ours!("annotations"),
    refused!("priorityClassName": "high", "priorityClassName is set by ANDREAS: use spec.weight and spec.deadline"),
    refused!("priority": "1000", "priority is set by ANDREAS: use spec.weight and spec.deadline"),
    refused!("preemptionPolicy": "Never", "preemptionPolicy is set by ANDREAS: use spec.preemption"),
    refused!("schedulerName": "default-scheduler", "schedulerName is set by ANDREAS: remove it"),
    refused!("nodeName": "node-1", "nodeName is chosen by ANDREAS: use nodeSelector or affinity in the template, or spec.gpus.types"),
    refused!("schedulingGates": "[{name: example.org/wait}]", "schedulingGates would hold members of a gang one by one: use spec.suspend"),
    refused!("schedulingGroup": "{podGroupName: mine}", "schedulingGroup is not needed: ANDREAS starts gangs as a whole; use spec.gpus.maxNodes"),
    refused!("hostname": "trainer", "hostname is set by ANDREAS so that the members of a gang find each other: use the environment variable PET_MASTER_ADDR"),
    refused!("hostnameOverride": "trainer", "hostnameOverride would hide the members of a gang from each other: use the environment variable PET_MASTER_ADDR"),
    refused!("subdomain": "gang", "subdomain is set by ANDREAS so that the members of a gang find each other: use the environment variable PET_MASTER_ADDR"),
    refused!("activeDeadlineSeconds": "3600", "activeDeadlineSeconds would count against stops and moves: use spec.maxRunTime"),
    refused!("terminationGracePeriodSeconds": "30", "terminationGracePeriodSeconds is set by ANDREAS: use spec.checkpoint.graceSeconds"),
    Rule {
        kind: KIND,
        path: POD,
        rule: "!has(self.restartPolicy) || self.restartPolicy == 'Never'",
        message: "restartPolicy must be Never or absent: a gang is started again as a whole; use spec.retries",
        field_path: Some(".restartPolicy"),
        accepted: Example::create("spec: {template: {spec: {restartPolicy: Never}}}"),
        rejected: Example::create("spec: {template: {spec: {restartPolicy: OnFailure}}}"),
    },
    refused_in_container!("restartPolicy": "Never"),
    refused_in_container!("restartPolicyRules": "[{action: Restart, exitCodes: {operator: In, values: [42]}}]"),
    no_gpus!(
        "containers",
        "spec: {template: {spec: {containers: [{name: trainer, image: example.org/trainer, resources: {requests: {cpu: 4, memory: 16Gi}, limits: {rdma/hca: 1}}}]}}}",
        "spec: {template: {spec: {containers: [{name: trainer, image: example.org/trainer, resources: {limits: {nvidia.com/gpu: 2}}}]}}}"
    ),
    no_gpus!(
        "initContainers",
        "spec: {template: {spec: {initContainers: [{name: fetch, image: example.org/fetch, resources: {requests: {cpu: 500m}}}]}}}",
        "spec: {template: {spec: {initContainers: [{name: fetch, image: example.org/fetch, resources: {requests: {nvidia.com/gpu: '1'}}}]}}}"
    ),
];
