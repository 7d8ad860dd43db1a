//! Least privilege, seen from the audit log: what our programs ask for is allowed, and what is allowed is asked for.
#![allow(missing_docs, clippy::unwrap_used)]

use std::collections::BTreeSet;
use std::time::Duration;

use andreas_api::phase::Phase;
use andreas_e2e::chart;
use andreas_e2e::cluster::{Cluster, Options, SYSTEM, a100};
use andreas_e2e::job::job;
use andreas_e2e::scenario::scenario;
use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};

/// Rights that this story does not need, each with what needs it.
const ELSEWHERE: [(&str, &str); 5] = [
    (
        "andreas.dev/trainingjobs/finalizers update",
        "OwnerReferencesPermissionEnforcement asks for it, no request does",
    ),
    ("andreas.dev/gpunodes patch", "wakes GPUs where a node's agent reports"),
    ("events.k8s.io/events patch", "the same event again becomes a series"),
    ("services read", "who owns a Service that is in the way"),
    ("pods read", "the extender looks up a pod that it was not asked about before"),
];

/// `get`, `list` and `watch` show the same: one right.
fn right(group: &str, resource: &str, subresource: &str, verb: &str) -> String {
    let group = if group.is_empty() { String::new() } else { format!("{group}/") };
    let subresource = if subresource.is_empty() { String::new() } else { format!("/{subresource}") };
    let verb = if matches!(verb, "get" | "list" | "watch") { "read" } else { verb };
    format!("{group}{resource}{subresource} {verb}")
}

/// What an account asked for, and what it was refused for want of a right.
fn asked(cluster: &Cluster, account: &str) -> Result<(BTreeSet<String>, BTreeSet<String>)> {
    let user = format!("system:serviceaccount:{SYSTEM}:{account}");
    let (mut asked, mut refused) = (BTreeSet::new(), BTreeSet::new());
    for event in cluster.testbed.audit_log()? {
        let event = event?;
        let object = &event.object_ref;
        if event.user.username != user || object.resource.is_empty() {
            continue;
        }
        let right = right(&object.api_group, &object.resource, &object.subresource, &event.verb);
        let answer = event.response_status.as_ref().map(|status| status.message.clone()).unwrap_or_default();
        // Not the 403 of a quota or of Pod Security.
        if event.code() == 403 && answer.contains(" cannot ") {
            refused.insert(format!("{right}: {answer}"));
        }
        asked.insert(right);
    }
    Ok((asked, refused))
}

/// What the chart's roles of this name allow.
async fn allowed(cluster: &Cluster, role: &str) -> Result<BTreeSet<String>> {
    let folder = chart::folder().display().to_string();
    let rendered =
        cluster.testbed.helm(["template", "andreas", &folder, "--namespace", SYSTEM]).await?.checked()?;
    let objects: Vec<Value> = serde_saphyr::from_multiple(&rendered.stdout).context("the rendered chart")?;
    let words = |value: &Value| -> Vec<String> {
        value.as_array().into_iter().flatten().filter_map(|word| word.as_str().map(str::to_owned)).collect()
    };
    let mut rights = BTreeSet::new();
    for object in objects {
        let kind = object["kind"].as_str().unwrap_or_default();
        if !matches!(kind, "Role" | "ClusterRole") || object["metadata"]["name"] != role {
            continue;
        }
        for rule in object["rules"].as_array().into_iter().flatten() {
            for group in words(&rule["apiGroups"]) {
                for resource in words(&rule["resources"]) {
                    rights
                        .extend(words(&rule["verbs"]).iter().map(|verb| right(&group, &resource, "", verb)));
                }
            }
        }
    }
    Ok(rights)
}

/// Given the chart's rights, when a gang runs, is stopped, goes on, ends and is cleaned up, then nothing is refused, and no right
/// was left unused but those that need another story.
#[tokio::test(flavor = "multi_thread")]
async fn our_programs_have_the_rights_they_use_and_no_others() -> Result<()> {
    scenario(Options { groups: vec![a100(2)], ..Options::default() }, async |c| {
        let tj = job("gang").gpus(8, 2).epochs(6, 0.3).spec("ttlSecondsAfterFinished", json!(1));
        c.submit(&tj).await?;
        c.reaches(&tj, Phase::Running).await?;
        c.edit(&tj.key(), &json!({"suspend": true})).await?;
        c.reaches(&tj, Phase::Suspended).await?;
        c.edit(&tj.key(), &json!({"suspend": false})).await?;
        c.reaches(&tj, Phase::Succeeded).await?;

        let elsewhere: BTreeSet<String> = ELSEWHERE.iter().map(|(right, _)| (*right).to_owned()).collect();
        let mut unused = BTreeSet::new();
        // A watch is recorded when it ends, but each begins with a list; the clean-up takes a moment.
        for _ in 0..100 {
            unused.clear();
            for (account, role) in [
                ("andreas-operator", "andreas-operator"),
                ("andreas-scheduler", "andreas-scheduler-extender"),
            ] {
                let (asked, refused) = asked(c, account)?;
                ensure!(refused.is_empty(), "{account} lacks rights: {refused:#?}");
                let allowed = allowed(c, role).await?;
                ensure!(allowed.len() > 2, "{role}: {allowed:?}");
                unused.extend(allowed.into_iter().filter(|r| !asked.contains(r) && !elsewhere.contains(r)));
            }
            if unused.is_empty() {
                return Ok(());
            }
            tokio::time::sleep(Duration::from_millis(300)).await;
        }
        ensure!(unused.is_empty(), "nobody needs these rights: {unused:#?}");
        Ok(())
    })
    .await
}
