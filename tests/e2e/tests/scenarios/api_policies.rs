//! The chart's admission policies on the real API server, each with what passes and what does not.

use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::api_kubectl;
use andreas_e2e::api::{Verdict, causes, create, delete, merge, patch, patch_status, yaml};
use andreas_e2e::chart::{self, SYSTEM};
use andreas_e2e::places;
use andreas_e2e::rules;
use andreas_testbed::wait::until;
use andreas_testbed::{Component, Testbed};
use anyhow::{Context as _, Result, ensure};
use k8s_openapi::api::admissionregistration::v1::ValidatingAdmissionPolicy;
use kube::api::ListParams;
use kube::{Api, Client};
use serde_json::{Value, json};

/// A control plane with the chart's objects and those who speak to it.
struct Stage {
    bed: Testbed,
    admin: Client,
    /// Has the cluster's role `admin` in the namespace `team`.
    tenant: Client,
    /// Has a role for TrainingJobs alone in the namespace `team`.
    submitter: Client,
    operator: Client,
}

async fn stage() -> Result<Stage> {
    let bed = Testbed::builder().name("api-policies").without_scheduler().start().await?;
    chart::install(&bed, &[]).await?;
    // The garbage collector looks for new kinds when it starts, and then every 30 seconds.
    bed.restart(Component::ControllerManager).await?;
    let admin = bed.client();
    for object in [
        "{apiVersion: v1, kind: Namespace, metadata: {name: team}}",
        "{apiVersion: v1, kind: Namespace, metadata: {name: bounded, annotations: {andreas.dev/max-weight: '5'}}}",
        "{apiVersion: v1, kind: Namespace, metadata: {name: muddled, annotations: {andreas.dev/max-weight: lots}}}",
    ] {
        create(&admin, &yaml(object)?, false).await?.accepted()?;
    }
    for args in [
        "create rolebinding tenant --clusterrole=admin --user=tenant -n team",
        "create role submitter --verb=create,get,patch --resource=trainingjobs.andreas.dev -n team",
        "create rolebinding submitter --role=submitter --user=submitter -n team",
    ] {
        bed.kubectl(args.split(' ')).await?.checked()?;
    }
    let client = async |kubeconfig: PathBuf| bed.client_for(&kubeconfig).await;
    let tenant = client(bed.kubeconfig_for_user("tenant", None)?).await?;
    let submitter = client(bed.kubeconfig_for_user("submitter", None)?).await?;
    let operator =
        client(bed.kubeconfig_for_service_account(SYSTEM, chart::operator_account()).await?).await?;
    let stage = Stage { admin, tenant, submitter, operator, bed };
    stage.wait_for_policies().await?;
    Ok(stage)
}

impl Stage {
    /// Policies and aggregated roles take a moment until they hold.
    async fn wait_for_policies(&self) -> Result<()> {
        let early = job("team", "early", "spec: {deadline: '2001-01-01T00:00:00Z'}")?;
        let forged = pod("team", "forged", "metadata: {labels: {andreas.dev/job: a}}")?;
        let normal = job("team", "normal", "")?;
        let queued = pod("team", "queued", "spec: {schedulerName: andreas}")?;
        let heavy = job("bounded", "heavy", "spec: {weight: 9}")?;
        until("the policies and the tenant's rights are in force", Duration::from_secs(120), async || {
            Ok(matches!(create(&self.tenant, &early, true).await?, Verdict::Refused(s) if s.code == 422)
                && matches!(create(&self.tenant, &forged, true).await?, Verdict::Refused(_))
                && matches!(create(&self.tenant, &normal, true).await?, Verdict::Accepted(_))
                && matches!(create(&self.submitter, &normal, true).await?, Verdict::Refused(_))
                && matches!(create(&self.admin, &heavy, true).await?, Verdict::Refused(_))
                && matches!(create(&self.tenant, &queued, true).await?, Verdict::Refused(_)))
        })
        .await?;
        Ok(())
    }
}

fn job(namespace: &str, name: &str, change: &str) -> Result<Value> {
    let mut job = rules::smallest("TrainingJob")?;
    merge(&mut job, &json!({"metadata": {"name": name, "namespace": namespace}}));
    merge(&mut job, &yaml(change)?);
    Ok(job)
}

fn pod(namespace: &str, name: &str, change: &str) -> Result<Value> {
    let mut pod = json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": namespace},
        "spec": {"automountServiceAccountToken": false, "containers": [{"name": "c", "image": "example.org/c"}]},
    });
    merge(&mut pod, &yaml(change)?);
    Ok(pod)
}

fn refused_with(verdict: Verdict, words: &str) -> Result<()> {
    let status = verdict.refused()?;
    ensure!(status.message.contains(words), "other words: {}", status.message);
    ensure!(causes(&status).len() == 1, "more than one message: {:?}", causes(&status));
    Ok(())
}

/// Given the chart's policies, each accepts its good examples and refuses its bad ones with one clear message.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_policy_accepts_and_refuses() {
    let _place = places::take(false).await.unwrap();
    let stage = stage().await.unwrap();
    deadlines_lie_after_creation(&stage).await.context("deadline").unwrap();
    a_namespace_bounds_weights(&stage).await.context("max-weight").unwrap();
    only_those_who_may_make_pods_submit(&stage).await.context("creator").unwrap();
    a_rule_about_who_asks_holds_for_what_users_make(&stage).await.context("a rule of one's own").unwrap();
    only_the_operator_makes_our_pods(&stage).await.context("pods, create").unwrap();
    nobody_else_says_whose_pod_it_is(&stage).await.context("pods, update").unwrap();
    only_training_pods_use_our_scheduler(&stage).await.context("scheduling").unwrap();
    an_orphaning_delete_ends(&stage).await.context("pods, garbage collector").unwrap();
    a_node_speaks_for_itself(&stage).await.context("gpunode-status").unwrap();
    status_belongs_to_the_operator(&stage).await.context("status").unwrap();
    no_expression_has_a_type_warning(&stage).await.unwrap();
    stage.bed.stop().await;
}

async fn deadlines_lie_after_creation(s: &Stage) -> Result<()> {
    let on_time = job("team", "on-time", "spec: {deadline: '2999-01-01T00:00:00Z'}")?;
    create(&s.tenant, &on_time, false).await?.accepted()?;
    let words = "is before the job was created";
    for past in ["1970-01-01T00:00:00Z", "2001-01-01T00:00:00+02:00"] {
        let late = job("team", "late", &format!("spec: {{deadline: '{past}'}}"))?;
        refused_with(create(&s.tenant, &late, true).await?, words)?;
        // What a backup brings back is late, and accepted.
        for mark in ["labels: {velero.io/restore-name: r1}", "annotations: {andreas.dev/restored: ''}"] {
            let mut restored = late.clone();
            merge(&mut restored, &yaml(&format!("metadata: {{{mark}}}"))?);
            create(&s.tenant, &restored, true).await?.accepted()?;
        }
    }
    let to_the_past = yaml("spec: {deadline: '2001-01-01T00:00:00Z'}")?;
    refused_with(patch(&s.tenant, &on_time, &to_the_past, true).await?, words)?;
    let nearer = yaml("spec: {deadline: '2998-01-01T00:00:00Z'}")?;
    patch(&s.tenant, &on_time, &nearer, true).await?.accepted()?;
    delete(&s.admin, &on_time).await
}

async fn a_namespace_bounds_weights(s: &Stage) -> Result<()> {
    let light = job("bounded", "light", "spec: {weight: 5}")?;
    create(&s.admin, &light, false).await?.accepted()?;
    let words = "is above 5, the largest that namespace bounded allows";
    refused_with(create(&s.admin, &job("bounded", "heavy", "spec: {weight: 6}")?, true).await?, words)?;
    refused_with(patch(&s.admin, &light, &yaml("spec: {weight: 900}")?, true).await?, words)?;
    // A bound that is lowered later does not stop other edits of what is there.
    let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "bounded"}});
    let lower = yaml("metadata: {annotations: {andreas.dev/max-weight: '1'}}")?;
    patch(&s.admin, &namespace, &lower, false).await?.accepted()?;
    patch(&s.admin, &light, &yaml("spec: {suspend: true}")?, true).await?.accepted()?;
    let muddled = create(&s.admin, &job("muddled", "any", "")?, true).await?;
    refused_with(muddled, "which is not a whole number")?;
    // Where nothing is said, the chart's bound holds.
    create(&s.tenant, &job("team", "free", "spec: {weight: 50}")?, true).await?.accepted()?;
    let words = "is above 50, the largest that namespace team allows";
    refused_with(create(&s.tenant, &job("team", "loud", "spec: {weight: 51}")?, true).await?, words)?;
    delete(&s.admin, &light).await
}

async fn only_those_who_may_make_pods_submit(s: &Stage) -> Result<()> {
    create(&s.tenant, &job("team", "mine", "")?, true).await?.accepted()?;
    let words = "submitter may not create pods in namespace team";
    refused_with(create(&s.submitter, &job("team", "mine", "")?, true).await?, words)
}

/// The rule of the page on security: it asks who makes a job, as none about pods can.
async fn a_rule_about_who_asks_holds_for_what_users_make(s: &Stage) -> Result<()> {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/security.md");
    let page = std::fs::read_to_string(page)?;
    let rule = page.split("```yaml\n").nth(1).and_then(|rest| rest.split("```").next()).context("a rule")?;
    let binding = json!({
        "apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingAdmissionPolicyBinding",
        "metadata": {"name": "own"},
        "spec": {"policyName": yaml(rule)?["metadata"]["name"], "validationActions": ["Deny"]},
    });
    for object in [rule, &binding.to_string()] {
        s.bed.kubectl_apply(object).await?.checked()?;
    }
    let with_account = job("team", "release", "spec: {template: {spec: {serviceAccountName: release}}}")?;
    until("the rule is in force", Duration::from_secs(60), async || {
        Ok(matches!(create(&s.tenant, &with_account, true).await?, Verdict::Refused(_)))
    })
    .await?;
    create(&s.tenant, &job("team", "ordinary", "")?, true).await?.accepted()?;
    s.bed.kubectl(["delete", "validatingadmissionpolicybinding", "own"]).await?.checked()?;
    Ok(())
}

/// Labels under `andreas.dev/` that say whose a pod is.
const IDENTITY: [&str; 5] = ["job", "job-uid", "attempt", "index", "allocation"];

const LABELLED: &str = "metadata: {labels: {andreas.dev/job: a, andreas.dev/attempt: '1'}}";

async fn only_the_operator_makes_our_pods(s: &Stage) -> Result<()> {
    let ours = pod("team", "ours", LABELLED)?;
    create(&s.operator, &ours, true).await?.accepted()?;
    let words = "only ANDREAS makes pods with labels of its jobs, not tenant";
    refused_with(create(&s.tenant, &ours, true).await?, words)?;
    // Each of them is believed by somebody: books, extender, a gang's Service.
    for label in IDENTITY {
        let forged = pod("team", "forged", &format!("metadata: {{labels: {{andreas.dev/{label}: '1'}}}}"))?;
        refused_with(create(&s.tenant, &forged, true).await?, words).context(label)?;
    }
    let all_but_one = "metadata: {labels: {andreas.dev/job-uid: u, andreas.dev/attempt: '1', andreas.dev/index: '0', \
        andreas.dev/allocation: '1'}}";
    refused_with(create(&s.tenant, &pod("team", "a-1-0", all_but_one)?, true).await?, words)?;
    // Others' pods do not depend on the policy.
    for labels in ["{app: web}", "{andreas.dev/team: vision}", "{job: a}"] {
        let other = pod("team", "other", &format!("metadata: {{labels: {labels}}}"))?;
        create(&s.tenant, &other, true).await?.accepted().context(labels)?;
    }
    create(&s.tenant, &pod("team", "bare", "")?, true).await?.accepted()?;
    Ok(())
}

async fn nobody_else_says_whose_pod_it_is(s: &Stage) -> Result<()> {
    let owner = create(&s.tenant, &job("team", "owner", "")?, false).await?.accepted()?;
    let reference = json!({"metadata": {"ownerReferences": [{
        "apiVersion": "andreas.dev/v1alpha1", "kind": "TrainingJob", "name": "owner",
        "uid": owner.metadata.uid, "controller": true, "blockOwnerDeletion": true}]}});
    let mut ours = pod("team", "ours", LABELLED)?;
    merge(&mut ours, &reference);
    create(&s.operator, &ours, false).await?.accepted()?;
    let foreign = pod("team", "foreign", "")?;
    create(&s.tenant, &foreign, false).await?.accepted()?;

    for (what, target, change) in [
        ("a label of ours is taken off", &ours, "metadata: {labels: {andreas.dev/job: null}}"),
        ("a label of ours is changed", &ours, "metadata: {labels: {andreas.dev/attempt: '2'}}"),
        ("a label of ours is added", &ours, "metadata: {labels: {andreas.dev/index: '7'}}"),
        ("an annotation of ours is added", &ours, "metadata: {annotations: {andreas.dev/allocation: '7'}}"),
        ("the owner is taken away", &ours, "metadata: {ownerReferences: null}"),
        ("a foreign pod is made ours", &foreign, "metadata: {labels: {andreas.dev/job: owner}}"),
    ] {
        refused_with(patch(&s.tenant, target, &yaml(change)?, true).await?, "only ANDREAS").context(what)?;
    }
    for label in IDENTITY {
        let change = yaml(&format!("metadata: {{labels: {{andreas.dev/{label}: '1'}}}}"))?;
        refused_with(patch(&s.tenant, &foreign, &change, true).await?, "only ANDREAS").context(label)?;
    }
    patch(&s.tenant, &foreign, &yaml("metadata: {labels: {team: vision}}")?, true).await?.accepted()?;
    // What is not ours to guard stays the tenant's.
    let harmless = yaml("metadata: {labels: {team: vision}, annotations: {note: mine}}")?;
    patch(&s.tenant, &ours, &harmless, true).await?.accepted()?;
    // A node's reports about the pod pass, but not with another label.
    let running = yaml("status: {phase: Running}")?;
    patch_status(&s.admin, &ours, &running).await?.accepted()?;
    let relabel = yaml("{status: {phase: Running}, metadata: {labels: {andreas.dev/job: other}}}")?;
    refused_with(patch_status(&s.admin, &ours, &relabel).await?, "only ANDREAS")?;
    delete(&s.admin, &foreign).await
}

/// Goes on with the pod and its owner of the test before.
async fn an_orphaning_delete_ends(s: &Stage) -> Result<()> {
    let delete = "delete tj owner -n team --cascade=orphan --timeout=120s";
    s.bed.kubectl(delete.split(' ')).await?.checked().context("the garbage collector is held up")?;
    let left = s
        .bed
        .kubectl("get pod ours -n team -o jsonpath={.metadata.ownerReferences}".split(' '))
        .await?
        .checked()?;
    ensure!(left.stdout.is_empty(), "the pod still has an owner: {}", left.stdout);
    Ok(())
}

async fn a_node_speaks_for_itself(s: &Stage) -> Result<()> {
    for object in [
        "{apiVersion: v1, kind: Node, metadata: {name: node-a}}",
        "{apiVersion: andreas.dev/v1alpha1, kind: GpuNode, metadata: {name: node-a}, spec: {gpuType: NVIDIA-L40S}}",
        "{apiVersion: andreas.dev/v1alpha1, kind: GpuNode, metadata: {name: node-b}, spec: {}}",
        "{apiVersion: v1, kind: Pod, metadata: {name: agent-a, namespace: andreas-node}, spec: {nodeName: node-a, \
          serviceAccountName: andreas-node-agent, containers: [{name: agent, image: example.org/agent}]}}",
    ] {
        create(&s.admin, &yaml(object)?, false).await?.accepted().context(object)?;
    }
    let token =
        "create token andreas-node-agent -n andreas-node --bound-object-kind=Pod --bound-object-name=agent-a";
    let token = s.bed.kubectl(token.split(' ')).await?.checked()?.stdout;
    let account = s.bed.kubeconfig_for_service_account("andreas-node", "andreas-node-agent").await?;
    let loose = s.bed.client_for(&account).await?;
    let mut bound = yaml(&std::fs::read_to_string(&account)?)?;
    bound["users"][0]["user"] = json!({"token": token.trim()});
    let path = s.bed.data_dir().join("agent-on-node-a.kubeconfig");
    std::fs::write(&path, bound.to_string())?;
    let agent = s.bed.client_for(&path).await?;

    let seen = yaml(
        "status: {observedWakeGeneration: 3, agentVersion: 0.1.0, totals: {gpus: 8, held: 4, resting: 2, watts: 1730, health: Warning}}",
    )?;
    let node = |name: &str| json!({"apiVersion": "andreas.dev/v1alpha1", "kind": "GpuNode", "metadata": {"name": name}});
    patch_status(&agent, &node("node-a"), &seen).await?.accepted()?;
    api_kubectl::nodes_read_well(&s.bed, "node-a").await?;
    let words = "only the agent on node node-b writes the status of its GpuNode";
    refused_with(patch_status(&agent, &node("node-b"), &seen).await?, words)?;
    // Not even an administrator by hand, and not the agent's account without a pod on the node.
    refused_with(patch_status(&s.admin, &node("node-a"), &seen).await?, "only the agent on node node-a")?;
    refused_with(patch_status(&loose, &node("node-a"), &seen).await?, "only the agent on node node-a")
}

async fn status_belongs_to_the_operator(s: &Stage) -> Result<()> {
    let mine = job("team", "claims", "status: {phase: Succeeded}")?;
    let made = create(&s.tenant, &mine, false).await?.accepted()?;
    ensure!(made.data.get("status").is_none(), "a status came in at creation: {}", made.data);
    let done = yaml("status: {phase: Succeeded}")?;
    let refusal = patch_status(&s.tenant, &mine, &done).await?.refused()?;
    ensure!(refusal.code == 403, "{}", refusal.message);
    patch_status(&s.operator, &mine, &done).await?.accepted()?;
    delete(&s.admin, &mine).await
}

async fn only_training_pods_use_our_scheduler(s: &Stage) -> Result<()> {
    let words = "are for the pods of TrainingJobs, not for tenant: create a TrainingJob";
    for change in ["spec: {schedulerName: andreas}", "spec: {priorityClassName: andreas-training}"] {
        let theirs = pod("team", "queue-filler", change)?;
        refused_with(create(&s.tenant, &theirs, true).await?, words)?;
        create(&s.operator, &theirs, true).await?.accepted()?;
        // The labels of a pod of an adopted job, which its own controller makes, open no way round.
        let labels = "metadata: {labels: {andreas.dev/job: tune, andreas.dev/adopted: 'true'}}";
        let mut disguised = theirs.clone();
        merge(&mut disguised, &yaml(labels)?);
        refused_with(create(&s.tenant, &disguised, true).await?, words)?;
    }
    // Others' schedulers and priorities are nobody's business here.
    let theirs = pod("team", "mine", "spec: {schedulerName: another}")?;
    create(&s.tenant, &theirs, true).await?.accepted()?;
    Ok(())
}

/// The API server checks the expressions against the types of what they match.
async fn no_expression_has_a_type_warning(s: &Stage) -> Result<()> {
    let policies: Api<ValidatingAdmissionPolicy> = Api::all(s.admin.clone());
    let mut checked = 0;
    for policy in policies.list(&ListParams::default()).await? {
        let Some(checking) = policy.status.and_then(|status| status.type_checking) else { continue };
        let warnings = checking.expression_warnings.unwrap_or_default();
        ensure!(warnings.is_empty(), "{:?}: {warnings:#?}", policy.metadata.name);
        checked += 1;
    }
    ensure!(checked >= 6, "only {checked} policies are checked");
    Ok(())
}
