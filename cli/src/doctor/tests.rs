//! A cluster that is well, and what is said of each thing that is not.

use k8s_openapi::ByteString;
use k8s_openapi::api::admissionregistration::v1::{
    ValidatingAdmissionPolicy, ValidatingAdmissionPolicyBinding,
};
use serde_json::json;

use super::*;
use crate::cluster::Right;
use crate::inventory::testing::{NOW, objects, policy};

/// A self-signed certificate from 2026-11-24 to 2036-11-21.
const CERTIFICATE: &str = include_str!("certificate.pem");

fn now() -> Timestamp {
    NOW.parse().unwrap()
}

fn labels(component: &str) -> serde_json::Value {
    json!({"app.kubernetes.io/component": component, "app.kubernetes.io/version": env!("CARGO_PKG_VERSION")})
}

fn deployment(component: &str, ready: i64) -> facts::SlimDeployment {
    let name = format!("andreas-{component}");
    serde_json::from_value(json!({
        "metadata": {"name": name, "namespace": "andreas-system", "labels": labels(component)},
        "spec": {"replicas": 2}, "status": {"readyReplicas": ready}}))
    .unwrap()
}

fn config(text: &str) -> k8s_openapi::api::core::v1::ConfigMap {
    serde_json::from_value(
        json!({"metadata": {"name": "andreas-scheduler"}, "data": {"scheduler.yaml": text}}),
    )
    .unwrap()
}

const CONFIGURATION: &str = "kind: KubeSchedulerConfiguration
profiles: [{schedulerName: andreas}]
extenders: [{filterVerb: filter}, {bindVerb: bind}]
";

fn secret(pem: &str) -> facts::CertificateSecret {
    let mut secret: facts::CertificateSecret =
        serde_json::from_value(json!({"metadata": {"name": "andreas-operator-tls"}})).unwrap();
    secret.data.certificate = Some(ByteString(pem.as_bytes().to_vec()));
    secret
}

fn admission_policy(name: &str) -> ValidatingAdmissionPolicy {
    serde_json::from_value(json!({"metadata": {"name": name}})).unwrap()
}

fn binding(policy: &str, action: &str) -> ValidatingAdmissionPolicyBinding {
    let spec = json!({"policyName": policy, "validationActions": [action]});
    serde_json::from_value(json!({"metadata": {"name": policy}, "spec": spec})).unwrap()
}

fn well() -> Facts {
    let definition = |plural: &&'static str| {
        let definition = json!({"metadata": {"name": plural}, "spec": {"versions": [{"name": "v1alpha1", "served": true}]},
            "status": {"conditions": [{"type": "Established", "status": "True"}]}});
        (*plural, Ok(serde_json::from_value(definition).unwrap()))
    };
    let mut objects = objects();
    objects.gpu_nodes.truncate(1);
    objects.nodes.as_mut().unwrap().truncate(1);
    let daemon_set = json!({"metadata": {"name": "agent", "labels": labels("agent")},
        "status": {"desiredNumberScheduled": 1, "numberReady": 1}});
    Facts {
        version: Ok(("1".into(), "36".into())),
        own_clock: 0,
        definitions: facts::RESOURCES.iter().map(definition).collect(),
        deployments: Ok(vec![deployment("operator", 2), deployment("scheduler", 2)]),
        daemon_sets: Ok(vec![serde_json::from_value(daemon_set).unwrap()]),
        config_maps: Ok(vec![config(CONFIGURATION)]),
        secrets: Ok(vec![secret(CERTIFICATE)]),
        admission: Ok(["pods", "weight"].map(admission_policy).into()),
        bindings: Ok(vec![binding("pods", "Deny"), binding("weight", "Deny")]),
        policies: Ok(vec![serde_json::from_value(policy()).unwrap()]),
        objects: Ok(objects),
        kubelets: Ok(vec![("gpu-1".into(), "2026-11-24T11:59:55Z".parse().unwrap())]),
    }
}

fn text(facts: &Facts, at: Timestamp) -> String {
    text_of(OutputArgs::default(), false, &checks(facts, at)).unwrap()
}

#[test]
fn a_cluster_that_is_well_passes_every_check() {
    insta::assert_snapshot!(text(&well(), now()));
}

#[test]
fn problems_alone_are_shown_beside_the_counts_of_all() {
    let all = checks(&well(), now());
    let text = text_of(OutputArgs::default(), true, &all).unwrap();
    assert_eq!(text, format!("{} ok, 0 warnings, 0 failed, 0 unknown\n", all.len()));
}

#[test]
fn each_fault_is_named_with_what_to_do() {
    let mut facts = well();
    facts.version = Ok(("1".into(), "31+".into()));
    facts.own_clock = -90;
    let missing = ClusterError::NotFound("gpunodes".into());
    facts.definitions.insert("gpunodes", Err(missing));
    facts.deployments = Ok(vec![deployment("operator", 1)]);
    facts.config_maps = Ok(vec![config("kind: KubeSchedulerConfiguration\nprofiles: []\n")]);
    facts.secrets = Ok(vec![secret("nonsense"), secret(CERTIFICATE)]);
    facts.policies = Ok(vec![]);
    facts.bindings = Ok(vec![binding("pods", "Deny"), binding("weight", "Warn")]);
    facts.objects = Ok(objects());
    facts.kubelets = Ok(vec![("gpu-1".into(), "2026-11-24T12:05:00Z".parse().unwrap())]);
    insta::assert_snapshot!(text(&facts, now()));
}

#[test]
fn where_the_clusters_own_scheduler_binds_none_of_ours_is_missing() {
    let failed = |mode: &str| {
        let mut facts = well();
        let mut operator = deployment("operator", 2);
        let args = json!(["run", format!("--scheduler-mode={mode}")]);
        operator.spec.template = json!({"spec": {"containers": [{"name": "operator", "args": args}]}});
        facts.deployments = Ok(vec![operator]);
        facts.config_maps = Ok(vec![]);
        let failed = checks(&facts, now()).into_iter().filter(|check| check.state == State::Failed);
        failed.map(|check| check.name).collect::<Vec<_>>()
    };
    assert_eq!(failed("affinity"), [""; 0]);
    assert_eq!(failed("extender"), ["scheduler", "scheduler profile"]);
}

#[test]
fn what_may_not_be_read_is_unknown_with_the_missing_right() {
    let mut facts = well();
    let right = Right {
        verb: "list",
        group: String::new(),
        resource: "secrets".into(),
        namespace: Some("andreas-system".into()),
    };
    facts.secrets = Err(ClusterError::Forbidden { right });
    let found = checks(&facts, now());
    let check = found.iter().find(|check| check.name == "certificates").unwrap();
    assert_eq!(check.state, State::Unknown);
    assert!(check.message.contains("list secrets in namespace andreas-system"), "{}", check.message);
    assert!(check.fix.as_deref().unwrap_or_default().contains("kubectl auth can-i"), "{:?}", check.fix);
}

#[test]
fn a_kubelet_that_offers_fewer_gpus_than_the_agent_sees_well_is_named() {
    let mut facts = well();
    let node = &mut facts.objects.as_mut().unwrap().nodes.as_mut().unwrap()[0];
    node.status.allocatable = serde_json::from_value(json!({"nvidia.com/gpu": "0"})).unwrap();
    let found = checks(&facts, now()).into_iter().find(|check| check.name == "device plug-in");
    let found = found.map(|check| (check.state, check.message));
    let words = "the agent on gpu-1 sees 4 GPUs that are well, its kubelet offers 0";
    assert_eq!(found, Some((State::Warning, words.to_owned())));
}

#[test]
fn an_old_driver_is_said_by_the_present_and_the_former_labels() {
    let found = |labels: &[serde_json::Value]| {
        let mut facts = well();
        facts.objects = Ok(objects());
        let nodes = facts.objects.as_mut().unwrap().nodes.as_mut().unwrap();
        for (node, labels) in nodes.iter_mut().zip(labels) {
            node.metadata.labels = serde_json::from_value(labels.clone()).unwrap();
        }
        let found = checks(&facts, now()).into_iter().find(|check| check.name == "drivers");
        found.map(|check| (check.state, check.message)).unwrap()
    };
    let full = |version: &str| json!({"nvidia.com/gpu.product": "A", "nvidia.com/cuda.driver-version.full": version});
    let former = json!({"nvidia.com/gpu.product": "A", "nvidia.com/cuda.driver.major": "470",
        "nvidia.com/cuda.driver.minor": "256", "nvidia.com/cuda.driver.rev": "02"});
    assert_eq!(found(&[]), (State::Ok, "580.95.05 on 3 nodes".into()));
    assert_eq!(found(&[full("535.54.03")]), (State::Ok, "535.54.03 on gpu-1, 580.95.05 on 2 nodes".into()));
    assert_eq!(
        found(&[full("530.30.02"), former]),
        (State::Warning, "470.256.02 on gpu-2, 530.30.02 on gpu-1".into())
    );
    let none = json!({"nvidia.com/gpu.product": "A"});
    let (state, message) = found(&[none.clone(), none]);
    let others = "no label names that of 2 nodes: their agents say whether it answers";
    assert_eq!((state, message), (State::Ok, format!("580.95.05 on gpu-4, {others}")));
}

#[test]
fn a_certificate_that_has_ended_or_ends_soon_is_said() {
    let state = |at: &str| {
        let found = checks(&well(), at.parse().unwrap());
        found.iter().find(|check| check.name.starts_with("certificate ")).map(|check| check.state)
    };
    assert_eq!(state("2026-11-25T00:00:00Z"), Some(State::Ok));
    assert_eq!(state("2036-11-20T00:00:00Z"), Some(State::Warning));
    assert_eq!(state("2037-01-01T00:00:00Z"), Some(State::Failed));
}
