use andreas_lifecycle::DryRunResult;
use andreas_model::NodeName;

use super::*;

#[test]
fn nodes_must_fit_what_admission_makes_of_a_worker() {
    let affinity = json!({"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution":
        {"nodeSelectorTerms": [{"matchExpressions": [{"key": "pool", "operator": "In", "values": ["b"]}]}]}}});
    let tolerates = json!({"tolerations": [{"key": "team", "operator": "Exists"}]});
    let taint = json!({"spec": {"taints": [{"key": "team", "value": "x", "effect": "NoSchedule"}]}});
    let claim = json!({"volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}]});
    let all = vec!["a", "b"];
    for (template, added, expected) in [
        (json!({}), json!({}), all.clone()),
        (json!({}), json!({"nodeSelector": {"pool": "b"}}), vec!["b"]),
        (json!({}), json!({"affinity": affinity}), vec!["b"]),
        (json!({}), claim, vec!["b"]),
        (json!({}), tolerates, vec!["a", "b", "tainted"]),
        // What the template says of nodes holds beside it.
        (json!({"affinity": affinity}), json!({"overhead": {"cpu": "1"}}), vec!["b"]),
        // Admission decides, not the template.
        (json!({"nodeSelector": {"pool": "a"}}), json!({"nodeSelector": {"pool": "b"}}), vec!["b"]),
    ] {
        let mut world = World::default();
        world.node("a", json!({"pool": "a"}), json!({})).node("b", json!({"pool": "b"}), json!({})).node(
            "tainted",
            json!({}),
            taint.clone(),
        );
        let volume = json!({"metadata": {"name": "pv", "resourceVersion": "900"}, "spec": {"nodeAffinity": {"required":
            {"nodeSelectorTerms": [{"matchExpressions": [{"key": "pool", "operator": "In", "values": ["b"]}]}]}}}});
        world.index.apply(serde_json::from_value::<SlimPersistentVolume>(volume).expect("a volume"));
        let claim = json!({"metadata": {"name": "data", "namespace": "team", "resourceVersion": "901"}, "spec": {"volumeName": "pv"}});
        world.index.apply(serde_json::from_value::<SlimPersistentVolumeClaim>(claim).expect("a claim"));
        let with = |more: &Value| -> k8s_openapi::api::core::v1::PodSpec {
            let mut spec = json!({"containers": [{"name": "t"}]});
            spec.as_object_mut().expect("object").extend(more.as_object().expect("object").clone());
            serde_json::from_value(spec).expect("a spec")
        };
        let mut kept = serde_json::to_value(with(&template)).expect("JSON");
        kept.as_object_mut().expect("object").extend(added.as_object().expect("object").clone());
        let kept = serde_json::from_value(kept).expect("a spec");
        let admitted = worker::admitted(Some(&with(&template)), kept);
        assert_eq!(admitted.is_some(), added != json!({}), "{added}");
        let spec = json!({"template": {"spec": with(&template)}});
        world.job("any", spec, json!(null), waiting());
        let ledger = world.ledger.as_mut().expect("a ledger");
        let run = DryRunResult { gpus: 8, smaller: None, at: at(0), refusal: None, admitted };
        ledger.entry(&key("any"), "any").record_dry_run(run);
        let snapshot = world.snapshot();
        let candidates = snapshot.jobs[0].candidates.as_ref();
        let nodes = || snapshot.nodes.iter().map(|node| node.name.clone()).collect();
        let candidates: Vec<NodeName> = candidates.map_or_else(nodes, |all| all.to_vec());
        assert_eq!(
            candidates.iter().map(NodeName::as_str).collect::<Vec<_>>(),
            expected,
            "{template} {added}"
        );
    }
}
