//! The chart as an administrator gets it: rights, installation, upgrade, removal, on the real API server.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::time::Duration;

use andreas_e2e::api::{create, yaml};
use andreas_e2e::chart::{self, SYSTEM};
use andreas_e2e::places;
use andreas_testbed::wait::until;
use andreas_testbed::{Component, Testbed, workspace_binary};
use anyhow::{Context as _, Result, ensure};
use serde_json::Value;
use tokio::process::Command;

/// What is installed with these values, without what only `helm test` makes.
async fn rendered(bed: &Testbed, values: &[&str]) -> Result<Vec<Value>> {
    let set = values.iter().flat_map(|value| ["--set", *value]);
    template(bed, &[&["--skip-tests"], set.collect::<Vec<_>>().as_slice()].concat()).await
}

async fn template(bed: &Testbed, options: &[&str]) -> Result<Vec<Value>> {
    let folder = chart::folder().display().to_string();
    let args = [&["template", "andreas", &folder, "--namespace", SYSTEM], options].concat();
    let text = bed.helm(args).await?.checked()?.stdout;
    let documents: Vec<Value> = serde_saphyr::from_multiple(&text).context("the rendered chart")?;
    Ok(documents.into_iter().filter(Value::is_object).collect())
}

fn text<'a>(value: &'a Value, pointer: &str) -> &'a str {
    value.pointer(pointer).and_then(Value::as_str).unwrap_or_default()
}

fn words(value: &Value) -> Vec<&str> {
    value.as_array().into_iter().flatten().filter_map(Value::as_str).collect()
}

/// Who may do what, a line for each resource.
fn rights(objects: &[Value]) -> String {
    let mut lines = String::new();
    for object in objects.iter().filter(|o| text(o, "/apiVersion").starts_with("rbac.")) {
        let (kind, name) = (text(object, "/kind"), text(object, "/metadata/name"));
        let namespace =
            object.pointer("/metadata/namespace").and_then(Value::as_str).map(|n| format!(" in {n}"));
        let _ = writeln!(lines, "{kind} {name}{}", namespace.unwrap_or_default());
        if kind.ends_with("Binding") {
            for subject in object["subjects"].as_array().into_iter().flatten() {
                let role = format!("{} {}", text(object, "/roleRef/kind"), text(object, "/roleRef/name"));
                let _ = writeln!(
                    lines,
                    "  {role} -> {} {}/{}",
                    text(subject, "/kind"),
                    text(subject, "/namespace"),
                    text(subject, "/name")
                );
            }
            continue;
        }
        for label in object["metadata"]["labels"].as_object().into_iter().flatten() {
            if label.0.contains("aggregate") {
                let _ = writeln!(lines, "  {}", label.0);
            }
        }
        let mut verbs = BTreeMap::new();
        for rule in object["rules"].as_array().into_iter().flatten() {
            let only = words(&rule["resourceNames"]).join(",");
            for url in words(&rule["nonResourceURLs"]) {
                verbs.entry(url.to_owned()).or_insert_with(Vec::new).extend(words(&rule["verbs"]));
            }
            for group in words(&rule["apiGroups"]) {
                for resource in words(&rule["resources"]) {
                    let only = if only.is_empty() { String::new() } else { format!(" ({only} only)") };
                    let core = if group.is_empty() { String::new() } else { format!("{group}/") };
                    verbs
                        .entry(format!("{core}{resource}{only}"))
                        .or_insert_with(Vec::new)
                        .extend(words(&rule["verbs"]));
                }
            }
        }
        for (resource, mut verbs) in verbs {
            verbs.sort_unstable();
            let _ = writeln!(lines, "  {resource}: {}", verbs.join(" "));
        }
    }
    lines
}

/// Given a control plane, the chart's rights are the known ones and no more, it installs without a warning under the
/// strictest Pod Security Standard, changes nothing in an upgrade with the same values, and leaves the users' objects when it is removed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_chart_on_a_real_api_server() {
    let _place = places::take(false).await.unwrap();
    let bed = Testbed::builder().name("api-chart").without_scheduler().start().await.unwrap();
    let objects = rendered(&bed, &[]).await.unwrap();
    insta::assert_snapshot!("rights", rights(&template(&bed, &[]).await.unwrap()));
    switches_leave_out_what_they_name(&bed).await.unwrap();
    senseless_values_are_refused(&bed).await.unwrap();
    a_namespace_that_denies_egress_can_allow_what_training_needs(&bed).await.unwrap();
    our_programs_know_the_flags(&bed, &objects).await.unwrap();
    it_installs_upgrades_and_goes(&bed).await.unwrap();
    nobody_may_more_than_they_should(&bed).await.unwrap();
    bed.stop().await;
}

fn kinds(objects: &[Value]) -> Vec<&str> {
    let mut kinds: Vec<&str> = objects.iter().map(|object| text(object, "/kind")).collect();
    kinds.sort_unstable();
    kinds.dedup();
    kinds
}

async fn switches_leave_out_what_they_name(bed: &Testbed) -> Result<()> {
    // With what `helm test` would make: the chart's page applies all of it.
    let off = "operator.enabled=false,scheduler.enabled=false,agent.enabled=false";
    let plain = template(bed, &["--set", off]).await?;
    ensure!(
        kinds(&plain)
            == [
                "ClusterRole",
                "ClusterRoleBinding",
                "CustomResourceDefinition",
                "PriorityClass",
                "Role",
                "RoleBinding",
                "ServiceAccount",
                "ValidatingAdmissionPolicy",
                "ValidatingAdmissionPolicyBinding",
            ],
        "{:?}",
        kinds(&plain)
    );
    let pods = rendered(
        bed,
        &[
            "crds.enabled=false",
            "rbac.create=false",
            "policies.enabled=false",
            "priorityClass.create=false",
            "operator.serviceAccount.create=false",
            "scheduler.serviceAccount.create=false",
            "agent.serviceAccount.create=false",
            "agent.createNamespace=false",
        ],
    )
    .await?;
    let expected = ["ConfigMap", "DaemonSet", "Deployment", "NetworkPolicy", "Service"];
    ensure!(kinds(&pods) == expected, "{:?}", kinds(&pods));
    let all = rendered(bed, &["networkPolicy.enabled=true", "operator.replicas=2"]).await?;
    ensure!(
        kinds(&all).contains(&"NetworkPolicy") && kinds(&all).contains(&"PodDisruptionBudget"),
        "{:?}",
        kinds(&all)
    );
    for image in all.iter().filter_map(|o| o.pointer("/spec/template/spec/containers")?.as_array()).flatten()
    {
        ensure!(!text(image, "/image").ends_with(':') && text(image, "/image").contains(':'), "{image}");
    }
    Ok(())
}

async fn senseless_values_are_refused(bed: &Testbed) -> Result<()> {
    for (value, said) in [
        ("operator.replica=2", "additional properties 'replica' not allowed"),
        ("operator.method=best", "/operator/method"),
        ("scheduler.config.url=http://10.0.0.7", "additional properties 'url' not allowed"),
        ("policies.validationActions={Deny,Warn}", "/policies/validationActions"),
        ("policies.users.operator=a'b", "/policies/users/operator"),
        ("agent.namespace=Not_One", "/agent/namespace"),
        ("agent.setterTtl=0", "/agent/setterTtl"),
        ("agent.interval=15001", "at most half of agent.setterTtl (30 s)"),
        ("agent.extraVolumes[0].hostPath.path=/x", "/agent/extraVolumes/0"),
        ("policies.disabled={all}", "/policies/disabled/0"),
        ("resourceQuota.pods=0", "/resourceQuota/pods"),
        ("certificates.issuer=helm", "/certificates/issuer"),
        ("certificates.issuer=certManager", "certificates.certManager.issuerRef.name"),
        ("operator.tls.existingSecret=andreas-operator-tls", "give yours another name"),
    ] {
        let error = rendered(bed, &[value]).await.err().with_context(|| format!("{value} is accepted"))?;
        ensure!(format!("{error:#}").contains(said), "{value}: {error:#}");
    }
    Ok(())
}

/// The NetworkPolicy of the examples is one that the API server takes, and names what the chart makes.
async fn a_namespace_that_denies_egress_can_allow_what_training_needs(bed: &Testbed) -> Result<()> {
    let path = chart::folder().join("../../deploy/examples/07-tenant-network-policy.yaml");
    let example = yaml(&std::fs::read_to_string(&path)?)?;
    bed.kubectl(["create", "--dry-run=server", "-f", &path.display().to_string()]).await?.checked()?;
    let objects = rendered(bed, &[]).await?;
    let operator = objects.iter().find(|object| {
        text(object, "/kind") == "Service" && text(object, "/metadata/name") == "andreas-operator"
    });
    let operator = operator.context("the operator's Service")?;
    let reports = &example["spec"]["egress"][1];
    let labels = reports["to"][0]["podSelector"]["matchLabels"].as_object().context("labels")?;
    for (name, value) in labels {
        ensure!(operator["spec"]["selector"][name] == *value, "{name}: {value}");
    }
    ensure!(operator["spec"]["ports"][0]["port"] == reports["ports"][0]["port"], "{reports}");
    Ok(())
}

/// A flag that a program does not know ends it with 2; with these it gets as far as looking for its kubeconfig.
async fn our_programs_know_the_flags(bed: &Testbed, objects: &[Value]) -> Result<()> {
    let containers =
        objects.iter().filter_map(|o| o.pointer("/spec/template/spec/containers")?.as_array()).flatten();
    let mut tried = 0;
    for container in containers.filter(|container| text(container, "/name") != "kube-scheduler") {
        let name = text(container, "/name");
        let program = if matches!(name, "operator" | "extender") { name } else { "node-agent" };
        // Neither does a setter speak with an API server, nor does it end by itself.
        if name.starts_with("setter") {
            the_setter_knows_its_flags(container).await?;
            continue;
        }
        let program = workspace_binary(&format!("andreas-{program}"))?;
        let args = words(&container["args"])
            .into_iter()
            .map(|arg| arg.replace("$(POD_NAME)", "a").replace("$(POD_NAMESPACE)", "b"));
        let missing = bed.data_dir().join("no-such-kubeconfig");
        let ended = Command::new(program)
            .args(args)
            .env("NODE_NAME", "n")
            .arg("--kubeconfig")
            .arg(missing)
            .output()
            .await?;
        let said =
            format!("{}{}", String::from_utf8_lossy(&ended.stdout), String::from_utf8_lossy(&ended.stderr));
        ensure!(ended.status.code() == Some(1) && said.contains("kubeconfig"), "{:?}: {said}", ended.status);
        tried += 1;
    }
    ensure!(tried == 3, "{tried} programs");
    Ok(())
}

/// It ends because the folder for its record cannot be made, not for a flag.
async fn the_setter_knows_its_flags(container: &Value) -> Result<()> {
    let args = words(&container["args"]).into_iter().filter(|arg| !arg.starts_with("--state="));
    let ended = Command::new(workspace_binary(words(&container["command"]).first().context("a command")?)?)
        .args(args)
        .args(["--keep-network", "--state=/dev/null/none"])
        .output()
        .await?;
    let said = String::from_utf8_lossy(&ended.stderr);
    ensure!(ended.status.code() == Some(1) && said.contains("/dev/null/none"), "{:?}: {said}", ended.status);
    Ok(())
}

async fn it_installs_upgrades_and_goes(bed: &Testbed) -> Result<()> {
    let folder = chart::folder().display().to_string();
    let namespace = "{apiVersion: v1, kind: Namespace, metadata: {name: andreas-system, labels: {\
                     pod-security.kubernetes.io/enforce: restricted, pod-security.kubernetes.io/warn: restricted}}}";
    create(&bed.client(), &yaml(namespace)?, false).await?.accepted()?;
    let lint = bed.helm(["lint", "--strict", &folder]).await?.checked()?;
    ensure!(lint.stdout.contains("0 chart(s) failed"), "{}", lint.stdout);
    let all = ["-n", SYSTEM, "--set", "operator.replicas=2,scheduler.replicas=2,networkPolicy.enabled=true"];
    let install = bed.helm(["install", "andreas", &folder].into_iter().chain(all)).await?.checked()?;
    ensure!(!install.stderr.contains("arning"), "{}", install.stderr);

    let manifest = async || -> Result<String> {
        Ok(bed.helm(["get", "manifest", "andreas", "-n", SYSTEM]).await?.checked()?.stdout)
    };
    let before = manifest().await?;
    ensure!(!before.contains("kind: Secret"), "certificates are not the chart's to make");
    let job = andreas_e2e::rules::smallest("TrainingJob")?;
    create(&bed.client(), &job, false).await?.accepted()?;

    bed.helm(["upgrade", "andreas", &folder].into_iter().chain(all)).await?.checked()?;
    ensure!(before == manifest().await?, "an upgrade with the same values changes something");

    bed.helm(["uninstall", "andreas", "-n", SYSTEM, "--wait"]).await?.checked()?;
    bed.kubectl(["get", "tj", "example"])
        .await?
        .checked()
        .context("removing the chart removed a TrainingJob")?;
    let left = bed.kubectl("get clusterrole,clusterrolebinding,validatingadmissionpolicy -o name -l app.kubernetes.io/part-of=andreas".split(' ')).await?.checked()?;
    ensure!(left.stdout.is_empty(), "left behind: {}", left.stdout);
    // It takes its own definitions over again.
    bed.helm(["install", "andreas", &folder].into_iter().chain(all)).await?.checked()?;
    Ok(())
}

async fn nobody_may_more_than_they_should(bed: &Testbed) -> Result<()> {
    // Aggregated roles are filled in by the controller manager.
    bed.restart(Component::ControllerManager).await?;
    for args in [
        "create rolebinding editor --clusterrole=edit --user=editor",
        "create rolebinding viewer --clusterrole=view --user=viewer",
    ] {
        bed.kubectl(args.split(' ')).await?.checked()?;
    }
    let operator = "system:serviceaccount:andreas-system:andreas-operator";
    let scheduler = "system:serviceaccount:andreas-system:andreas-scheduler";
    let agent = "system:serviceaccount:andreas-node:andreas-node-agent";
    for (user, question, expected) in [
        (operator, "create pods -n default", true),
        (operator, "patch trainingjobs.andreas.dev --subresource=status -n default", true),
        (operator, "update leases.coordination.k8s.io/andreas-operator -n andreas-system", true),
        (operator, "get secrets -n default", false),
        (operator, "get secrets -n andreas-system", false),
        (operator, "list secrets -n andreas-system", false),
        (operator, "create secrets -n andreas-system", false),
        (operator, "patch secrets/other -n andreas-system", false),
        (operator, "patch secrets/andreas-operator-tls -n andreas-system", true),
        (operator, "delete secrets/andreas-operator-tls -n andreas-system", false),
        (operator, "create pods --subresource=exec -n default", false),
        (operator, "get pods --subresource=log -n default", false),
        (operator, "patch pods -n default", false),
        (operator, "create pods --subresource=binding -n default", false),
        (operator, "patch trainingjobs.andreas.dev -n default", false),
        (operator, "patch gpunodes.andreas.dev --subresource=status", false),
        (operator, "update leases.coordination.k8s.io/andreas-scheduler -n andreas-system", false),
        (operator, "update leases.coordination.k8s.io -n kube-system", false),
        (operator, "create serviceaccounts --subresource=token -n default", false),
        (operator, "patch customresourcedefinitions.apiextensions.k8s.io", false),
        (operator, "create clusterrolebindings.rbac.authorization.k8s.io", false),
        (operator, "impersonate users", false),
        (operator, "patch nodes", false),
        (scheduler, "create pods --subresource=binding -n default", true),
        (scheduler, "get trainingjobs.andreas.dev -n default", true),
        (scheduler, "create pods -n default", false),
        (scheduler, "get secrets -n default", false),
        (scheduler, "patch trainingjobs.andreas.dev --subresource=status -n default", false),
        (agent, "patch gpunodes.andreas.dev --subresource=status", true),
        (agent, "get pods -n default", false),
        (agent, "list pods -n default", false),
        (agent, "patch gpunodes.andreas.dev", false),
        (agent, "watch leases.coordination.k8s.io/andreas-operator -n andreas-system", true),
        (agent, "update leases.coordination.k8s.io/andreas-operator -n andreas-system", false),
        (agent, "get secrets -n andreas-system", false),
        (agent, "patch nodes", false),
        ("editor", "create trainingjobs.andreas.dev -n default", true),
        ("editor", "patch trainingjobs.andreas.dev --subresource=status -n default", false),
        ("editor", "create pods --subresource=binding -n default", false),
        ("editor", "patch energypolicies.andreas.dev", false),
        ("viewer", "get trainingjobs.andreas.dev -n default", true),
        ("viewer", "create trainingjobs.andreas.dev -n default", false),
    ] {
        let asked = ["auth", "can-i"].into_iter().chain(question.split(' ')).chain(["--as", user]);
        let asked: Vec<&str> = asked.collect();
        // A role that is given may take a moment until it holds; what is not given is refused at once.
        let what = format!("{user}: {question}: {expected}");
        let answered = async || {
            let answer = bed.kubectl(asked.iter()).await?.stdout;
            let right = answer.starts_with(if expected { "yes" } else { "no" });
            ensure!(right || expected, "{what}: {answer}");
            Ok(right)
        };
        until(&what, Duration::from_secs(60), answered).await?;
    }
    Ok(())
}
