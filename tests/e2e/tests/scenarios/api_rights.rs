//! Least privilege, seen from the audit log of a real installation: what our programs ask for is allowed, what is allowed is asked
//! for, and without any single right that request is refused.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::time::Duration;

use andreas_api::phase::Phase;
use andreas_e2e::api::create;
use andreas_e2e::chart::SYSTEM;
use andreas_e2e::cluster::{Cluster, Options, a100, short_runs};
use andreas_e2e::install;
use andreas_e2e::job::job;
use andreas_e2e::pages;
use andreas_e2e::scenario::scenario;
use andreas_testbed::wait::until;
use anyhow::{Context as _, Result, ensure};
use k8s_openapi::api::authorization::v1::{ResourceAttributes, SubjectAccessReview, SubjectAccessReviewSpec};
use kube::api::{Api, ApiResource, DynamicObject, GroupVersionKind, Patch, PatchParams, PostParams};
use serde_json::{Value, json};

const AGENTS: &str = "andreas-node";
/// How long the API server may go on to grant a right that was taken away.
const DENIED_WITHIN: Duration = Duration::from_secs(60);
/// From the end of all programs until the API server has recorded what they asked for last.
const RECORDED_WITHIN: Duration = Duration::from_secs(60);

/// The chart's roles of our programs: kind, namespace, name, and the account that has it.
const ROLES: [(&str, &str, &str, &str); 6] = [
    ("ClusterRole", "", "andreas-operator", "andreas-system:andreas-operator"),
    ("Role", SYSTEM, "andreas-operator", "andreas-system:andreas-operator"),
    ("ClusterRole", "", "andreas-scheduler-extender", "andreas-system:andreas-scheduler"),
    ("Role", SYSTEM, "andreas-scheduler", "andreas-system:andreas-scheduler"),
    ("ClusterRole", "", "andreas-node-agent", "andreas-node:andreas-node-agent"),
    ("Role", SYSTEM, "andreas-node-agent", "andreas-node:andreas-node-agent"),
];

/// Rights that this scenario does not use for certain, each with what needs it.
const ELSEWHERE: [(&str, &str); 8] = [
    ("update andreas.dev/trainingjobs/finalizers", "asked for by admission, not by a request: shown below"),
    ("get andreas.dev/trainingjobs", "a status that somebody else has written meanwhile is read again"),
    ("create secrets", "asked for beside the patch that makes the Secret of our certificates"),
    ("create podtemplates", "asked for beside the patch that makes it"),
    ("create autoscaling.x-k8s.io/capacitybuffers", "the same"),
    ("delete autoscaling.x-k8s.io/capacitybuffers", "beside a real autoscaler, whose kind it is"),
    ("delete andreas.dev/trainingprofiles", "profiles that no job has used for three months go"),
    ("get services", "who owns a Service that is in the way: a unit test of the executor has one"),
];

/// One verb on one resource.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Right {
    verb: String,
    group: String,
    /// With its subresource.
    resource: String,
    /// Of that name only.
    name: String,
}

impl fmt::Display for Right {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let group = if self.group.is_empty() { String::new() } else { format!("{}/", self.group) };
        write!(f, "{} {group}{}", self.verb, self.resource)
    }
}

impl Right {
    fn rule(&self) -> Value {
        let mut rule = json!({"apiGroups": [self.group], "resources": [self.resource], "verbs": [self.verb]});
        if !self.name.is_empty() {
            rule["resourceNames"] = json!([self.name]);
        }
        rule
    }
}

fn words(value: &Value) -> Vec<String> {
    value.as_array().into_iter().flatten().filter_map(|word| word.as_str().map(str::to_owned)).collect()
}

/// A role's rules, taken apart.
fn rights(role: &DynamicObject) -> Vec<Right> {
    let mut rights = Vec::new();
    for rule in role.data["rules"].as_array().into_iter().flatten() {
        let mut names = words(&rule["resourceNames"]);
        if names.is_empty() {
            names.push(String::new());
        }
        for group in words(&rule["apiGroups"]) {
            for resource in words(&rule["resources"]) {
                for verb in words(&rule["verbs"]) {
                    rights.extend(names.iter().map(|name| Right {
                        verb: verb.clone(),
                        group: group.clone(),
                        resource: resource.clone(),
                        name: name.clone(),
                    }));
                }
            }
        }
    }
    rights
}

fn role_api(c: &Cluster, kind: &str, namespace: &str) -> Api<DynamicObject> {
    let resource = ApiResource::from_gvk(&GroupVersionKind::gvk("rbac.authorization.k8s.io", "v1", kind));
    match namespace {
        "" => Api::all_with(c.testbed.client(), &resource),
        namespace => Api::namespaced_with(c.testbed.client(), namespace, &resource),
    }
}

/// An object with this spec.
fn merged(mut object: Value, spec: Value) -> Value {
    object["spec"] = spec;
    object
}

/// Requests, as rights, by account.
type ByAccount = BTreeMap<String, BTreeSet<String>>;

/// What each account asked for and was given, and what it was refused for want of a right.
fn asked(c: &Cluster) -> Result<(ByAccount, BTreeSet<String>)> {
    let (mut asked, mut refused) = (ByAccount::new(), BTreeSet::new());
    for event in c.testbed.audit_log()? {
        let event = event?;
        let Some(account) = event.user.username.strip_prefix("system:serviceaccount:") else { continue };
        if !ROLES.iter().any(|(.., of)| *of == account) || event.object_ref.resource.is_empty() {
            continue;
        }
        let object = &event.object_ref;
        let subresource =
            if object.subresource.is_empty() { String::new() } else { format!("/{}", object.subresource) };
        let right = Right {
            verb: event.verb.clone(),
            group: object.api_group.clone(),
            resource: format!("{}{subresource}", object.resource),
            name: String::new(),
        };
        let answer = event.response_status.as_ref().map(|status| status.message.clone()).unwrap_or_default();
        // Not the 403 of a quota, of Pod Security, of a namespace that ends, or of an API server that does not know a kind of owner in
        // the first half minute after its definition.
        let of_rights = answer.contains(" cannot ") && !answer.contains("cannot find RESTMapping");
        if event.code() == 403 && of_rights {
            refused.insert(format!("{account}: {right}: {answer}"));
        } else {
            asked.entry(account.to_owned()).or_default().insert(right.to_string());
        }
    }
    Ok((asked, refused))
}

/// Whether the API server would let the account do it.
async fn may(c: &Cluster, account: &str, namespace: &str, right: &Right) -> Result<bool> {
    let (own, _) = account.split_once(':').context("an account")?;
    let (resource, subresource) = right.resource.split_once('/').unwrap_or((&right.resource, ""));
    let some = |text: &str| (!text.is_empty()).then(|| text.to_owned());
    let review = SubjectAccessReview {
        spec: SubjectAccessReviewSpec {
            user: Some(format!("system:serviceaccount:{account}")),
            groups: Some(vec![
                "system:serviceaccounts".into(),
                format!("system:serviceaccounts:{own}"),
                "system:authenticated".into(),
            ]),
            resource_attributes: Some(ResourceAttributes {
                verb: some(&right.verb),
                group: some(&right.group),
                resource: some(resource),
                subresource: some(subresource),
                namespace: some(namespace),
                name: some(&right.name),
                ..ResourceAttributes::default()
            }),
            ..SubjectAccessReviewSpec::default()
        },
        ..SubjectAccessReview::default()
    };
    let reviews: Api<SubjectAccessReview> = Api::all(c.testbed.client());
    let answer = reviews.create(&PostParams::default(), &review).await?;
    Ok(answer.status.is_some_and(|status| status.allowed))
}

/// Given the chart's rights and a scenario in which every program does all that it does, then nothing is refused and no
/// right is left unused; and without any one of them, the account is refused that very request.
#[tokio::test(flavor = "multi_thread")]
async fn our_programs_have_the_rights_they_use_and_need_each_of_them() -> Result<()> {
    let mut policy = short_runs();
    policy["rest"] = json!({"mode": "On", "after": "1s"});
    let without = policy.clone();
    policy["capacity"] = json!([{"name": "more", "gpuType": "NVIDIA-A100-SXM4-80GB", "gpus": 4, "maxNodes": 1,
        "allocatable": {"cpu": "8", "memory": "64Gi"}, "nodeSelector": {"pool": "more"}}]);
    let options = Options {
        name: "rights".into(),
        groups: vec![a100(2)],
        policy,
        install: Some(json!({})),
        ..Options::default()
    };
    scenario(options, async |c| {
        let tj =
            job("gang").gpus(8, 2).epochs(40, 0.5).spec("ttlSecondsAfterFinished", json!(1)).stays_at(0.9);
        c.submit(&tj).await?;
        c.wait_for_phase(&tj, Phase::Running).await?;
        // What is asked for of an autoscaler goes with the policy that named it.
        let policy = json!({"apiVersion": "andreas.dev/v1alpha1", "kind": "EnergyPolicy", "metadata": {"name": "default"}});
        let of_pool = || c.kubectl("get podtemplates -n andreas-system -o name");
        until("the pool's template is there", DENIED_WITHIN, async || Ok(!of_pool().await?.trim().is_empty())).await?;
        c.apply(&merged(policy, without)).await?;
        until("the pool's template is gone", DENIED_WITHIN, async || Ok(of_pool().await?.trim().is_empty())).await?;
        // Who reads about all namespaces is asked for a token and a right.
        pages::read_from_pod(c, "/snapshot").await?;
        c.edit(&tj.key(), &json!({"suspend": true})).await?;
        c.wait_for_phase(&tj, Phase::Suspended).await?;
        c.edit(&tj.key(), &json!({"suspend": false})).await?;
        // Before a program is blamed, its nodes are read.
        let fails =
            job("fails").spec("retries", json!(0)).env("TRAINER_FAIL_AT", 0.3).env("TRAINER_EXIT_CODE", 7);
        c.submit(&fails).await?;
        c.wait_for_phase(&fails, Phase::Failed).await?;
        let key = tj.key();
        c.observer
            .until("the gang ends and is cleaned up", Duration::from_secs(120), |seen| {
                seen.jobs.get(&key).is_some_and(|view| view.deleted)
            })
            .await?;
        end_all_programs(c).await?;

        let mut unused = BTreeSet::new();
        let all_used = async || {
            unused = unused_rights(c).await?;
            Ok(unused.is_empty())
        };
        let waited = until("every right was used", RECORDED_WITHIN, all_used).await;
        waited.with_context(|| format!("of the rights, as last seen, nobody used {unused:#?}"))?;
        let mut superfluous = BTreeSet::new();
        let mut tried = 0;
        for (kind, namespace, name, account) in ROLES {
            let api = role_api(c, kind, namespace);
            let role = api.get(name).await.with_context(|| format!("{kind} {name}"))?;
            let all = rights(&role);
            ensure!(!all.is_empty(), "{kind} {name} is empty");
            for right in &all {
                let text = right.to_string();
                ensure!(may(c, account, namespace, right).await?, "{account} may not {text}");
                let left: Vec<Value> = all.iter().filter(|other| *other != right).map(Right::rule).collect();
                let params = PatchParams::default();
                api.patch(name, &params, &Patch::Merge(json!({ "rules": left }))).await?;
                let denied = async || Ok(!may(c, account, namespace, right).await?);
                if until(&text, DENIED_WITHIN, denied).await.is_err() {
                    superfluous.insert(format!("{account}: {text}"));
                }
                tried += 1;
            }
            let whole = json!({ "rules": role.data["rules"] });
            api.patch(name, &PatchParams::default(), &Patch::Merge(whole)).await?;
        }
        println!("{tried} rights taken away, one by one");
        ensure!(superfluous.is_empty(), "without these nothing is refused: {superfluous:#?}");
        owners_are_guarded(c).await
    })
    .await
}

/// Rights that nobody was seen to use so far. None that was asked for may be missing.
async fn unused_rights(c: &Cluster) -> Result<BTreeSet<String>> {
    let (asked, refused) = asked(c)?;
    ensure!(refused.is_empty(), "rights are missing: {refused:#?}");
    let mut unused = BTreeSet::new();
    for (kind, namespace, name, account) in ROLES {
        let role = role_api(c, kind, namespace).get(name).await.with_context(|| format!("{kind} {name}"))?;
        for right in rights(&role) {
            let text = right.to_string();
            let used = asked.get(account).is_some_and(|asked| asked.contains(&text));
            if !used && !ELSEWHERE.iter().any(|(elsewhere, _)| *elsewhere == text) {
                unused.insert(format!("{account}: {text}"));
            }
        }
    }
    Ok(unused)
}

/// A watch is recorded when it ends, and when the API server has noticed that.
async fn end_all_programs(c: &Cluster) -> Result<()> {
    for deployment in ["andreas-operator", "andreas-scheduler"] {
        c.kubectl(&format!("scale deployment {deployment} -n {SYSTEM} --replicas=0")).await?;
    }
    let away = "{\"spec\":{\"template\":{\"spec\":{\"nodeSelector\":{\"nobody\":\"here\"}}}}}";
    c.kubectl(&format!("patch daemonset andreas-node-agent -n {AGENTS} --type merge -p {away}")).await?;
    install::no_pods(&c.testbed).await
}

/// OwnerReferencesPermissionEnforcement is on: a pod whose owner must not be deleted first needs the right on the owner's finalizers.
async fn owners_are_guarded(c: &Cluster) -> Result<()> {
    let kubeconfig = c.testbed.kubeconfig_for_service_account(SYSTEM, "andreas-operator").await?;
    let operator = c.testbed.client_for(&kubeconfig).await?;
    let owner =
        create(&c.testbed.client(), &job("owner").spec("suspend", json!(true)).build(), false).await?;
    let owner = owner.accepted()?;
    let pod = json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": "owned", "namespace": "default", "ownerReferences": [{
            "apiVersion": "andreas.dev/v1alpha1", "kind": "TrainingJob", "name": "owner", "uid": owner.metadata.uid,
            "controller": true, "blockOwnerDeletion": true}]},
        "spec": {"containers": [{"name": "c", "image": "example.org/c"}]},
    });
    create(&operator, &pod, true).await?.accepted()?;
    let api = role_api(c, "ClusterRole", "");
    let role = api.get("andreas-operator").await?;
    let left: Vec<Value> = rights(&role)
        .iter()
        .filter(|right| right.resource != "trainingjobs/finalizers")
        .map(Right::rule)
        .collect();
    api.patch("andreas-operator", &PatchParams::default(), &Patch::Merge(json!({ "rules": left }))).await?;
    until(
        "no pod is owned without the right on its owner's finalizers",
        DENIED_WITHIN,
        async || match create(&operator, &pod, true).await?.refused() {
            Ok(refusal) => Ok(refusal.code == 403 && refusal.message.contains("blockOwnerDeletion")),
            Err(_) => Ok(false),
        },
    )
    .await?;
    Ok(())
}
