//! Checks of the installation: versions, definitions, programs, scheduler profile, certificates, policy.

use andreas_api::names::{DEFAULT_POLICY, SCHEDULER, VERSION};
use andreas_runtime::certificates::validity;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::ConfigMap;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde_json::Value;

use super::facts::{CertificateSecret, Facts, RESOURCES, condition};
use super::{Check, State};
use crate::cluster::ClusterError;
use crate::output::ago_or_in;

/// Oldest minor version of Kubernetes that is supported.
const OLDEST_MINOR: u32 = 34;
/// A certificate that ends sooner is worth a warning, s.
const SOON: i64 = 3 * 86_400;
/// Labels of the chart.
const COMPONENT: &str = "app.kubernetes.io/component";
const RELEASE: &str = "app.kubernetes.io/version";

/// The checks, in the order in which an installation comes about.
pub fn checks(facts: &Facts, now: Timestamp) -> Vec<Check> {
    let mut checks = vec![version(facts)];
    checks.push(definitions(facts));
    checks.push(deployment(facts, "operator"));
    let bound_by_others = bound_by_others(facts);
    checks.push(if bound_by_others {
        Check::ok("scheduler", "none of ours: the cluster's own binds (operator.schedulerMode=affinity)")
    } else {
        deployment(facts, "scheduler")
    });
    checks.push(agents(facts));
    checks.push(releases(facts));
    if !bound_by_others {
        checks.push(scheduler_profile(facts));
    }
    checks.push(admission(facts));
    checks.extend(certificates(facts, now));
    checks.extend(policy(facts));
    checks
}

fn version(facts: &Facts) -> Check {
    let name = "Kubernetes version";
    match &facts.version {
        Err(error) => Check::unread(name, error),
        Ok((major, minor)) => {
            let number = minor.trim_end_matches(|c: char| !c.is_ascii_digit()).parse::<u32>().unwrap_or(0);
            let found = format!("{major}.{minor}");
            if major == "1" && number < OLDEST_MINOR {
                let fix = format!("use Kubernetes 1.{OLDEST_MINOR} or newer (docs/installation.md)");
                return Check::not(State::Failed, name, found, fix);
            }
            Check::ok(name, found)
        }
    }
}

fn definitions(facts: &Facts) -> Check {
    let name = "custom resources";
    let mut problems = Vec::new();
    for plural in RESOURCES {
        match facts.definitions.get(plural) {
            None => {}
            Some(Err(ClusterError::NotFound(_))) => problems.push(format!("{plural} is missing")),
            Some(Err(error)) => return Check::unread(name, error),
            Some(Ok(definition)) => {
                let served = definition.spec.versions.iter().any(|one| one.name == VERSION && one.served);
                let mut conditions = definition.status.iter().flat_map(|status| &status.conditions).flatten();
                let refused = conditions.find(|one| {
                    one.status == "False" && matches!(one.type_.as_str(), "Established" | "NamesAccepted")
                });
                if !served {
                    problems.push(format!("{plural} is not served as {VERSION}"));
                } else if let Some(one) = refused {
                    let message = one.message.as_deref().unwrap_or_default();
                    problems.push(format!("{plural} is not established: {message}"));
                }
            }
        }
    }
    if problems.is_empty() {
        return Check::ok(name, format!("{} are served as {VERSION}", RESOURCES.join(", ")));
    }
    Check::not(
        State::Failed,
        name,
        problems.join("; "),
        "install the chart, or apply its crds/ (docs/installation.md)",
    )
}

fn component(metadata: &ObjectMeta) -> &str {
    metadata.labels.as_ref().and_then(|labels| labels.get(COMPONENT)).map_or("", String::as_str)
}

/// Whether the operator leaves its pods to the cluster's own scheduler, so that none of ours is needed.
fn bound_by_others(facts: &Facts) -> bool {
    let operators = facts.deployments.iter().flatten().filter(|one| component(&one.metadata) == "operator");
    let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
    let containers = operators.flat_map(|one| list(&one.spec.template["spec"]["containers"]));
    let mut words = containers.flat_map(|container| list(&container["args"]));
    words.any(|word| word == "--scheduler-mode=affinity")
}

fn deployment(facts: &Facts, part: &str) -> Check {
    let all = match &facts.deployments {
        Err(error) => return Check::unread(part, error),
        Ok(all) => all,
    };
    let Some(found) = all.iter().find(|one| component(&one.metadata) == part) else {
        let fix = format!("install the chart with {part}.enabled (docs/installation.md)");
        return Check::not(State::Failed, part, "there is no such Deployment", fix);
    };
    let (wanted, ready) = (found.spec.replicas.unwrap_or(1), found.status.ready_replicas);
    let message = format!("{ready} of {wanted} pods are ready");
    let name = found.metadata.name.as_deref().unwrap_or_default();
    let fix = format!(
        "kubectl -n {} describe deployment {name}",
        found.metadata.namespace.as_deref().unwrap_or_default()
    );
    match ready {
        0 => Check::not(State::Failed, part, message, fix),
        _ if ready < wanted => Check::not(State::Warning, part, message, fix),
        _ => Check::ok(part, message),
    }
}

fn agents(facts: &Facts) -> Check {
    let name = "node agents";
    let all = match &facts.daemon_sets {
        Err(error) => return Check::unread(name, error),
        Ok(all) => all,
    };
    let Some(found) = all.iter().find(|one| component(&one.metadata) == "agent") else {
        return Check::not(
            State::Warning,
            name,
            "there is no such DaemonSet: energy is predicted and not measured, GPUs do not rest",
            "install the chart with agent.enabled",
        );
    };
    let (wanted, ready) = (found.status.desired_number_scheduled, found.status.number_ready);
    let message = format!("{ready} of {wanted} pods are ready");
    let namespace = found.metadata.namespace.as_deref().unwrap_or_default();
    if ready < wanted || wanted == 0 {
        let fix = format!("kubectl -n {namespace} get pods -l {COMPONENT}=agent -o wide");
        let state = if ready == 0 { State::Failed } else { State::Warning };
        return Check::not(state, name, message, fix);
    }
    Check::ok(name, message)
}

/// Whether all programs are of one release, and of that of this command.
fn releases(facts: &Facts) -> Check {
    let name = "releases";
    let (Ok(deployments), Ok(daemon_sets)) = (&facts.deployments, &facts.daemon_sets) else {
        let message = "the Deployments and DaemonSets may not be listed";
        return Check { name: name.into(), state: State::Unknown, message: message.into(), fix: None };
    };
    let metadata =
        deployments.iter().map(|one| &one.metadata).chain(daemon_sets.iter().map(|one| &one.metadata));
    let mut found: Vec<&str> =
        metadata.filter_map(|one| one.labels.as_ref()?.get(RELEASE).map(String::as_str)).collect();
    found.sort_unstable();
    found.dedup();
    let own = env!("CARGO_PKG_VERSION");
    match found.as_slice() {
        [one] if *one == own => Check::ok(name, format!("all are {own}")),
        [] => Check::not(State::Warning, name, "no release is known", "install the chart"),
        several => {
            let message = format!("the cluster has {}, this command is {own}", several.join(" and "));
            Check::not(State::Warning, name, message, "use one release (deploy/upgrade.md)")
        }
    }
}

fn scheduler_profile(facts: &Facts) -> Check {
    let name = "scheduler profile";
    let maps = match &facts.config_maps {
        Err(error) => return Check::unread(name, error),
        Ok(maps) => maps,
    };
    let texts = |map: &ConfigMap| map.data.clone().unwrap_or_default().into_values().collect::<Vec<_>>();
    let configurations =
        maps.iter().flat_map(texts).filter_map(|text| serde_saphyr::from_str::<Value>(&text).ok());
    let mut found = configurations.filter(|one| one["kind"] == "KubeSchedulerConfiguration");
    let Some(configuration) = found.next() else {
        let fix =
            "look for it in the namespace of --operator-namespace; the chart makes it with scheduler.enabled";
        return Check::not(State::Failed, name, "there is no KubeSchedulerConfiguration", fix);
    };
    let list = |field: &str| configuration[field].as_array().cloned().unwrap_or_default();
    if !list("profiles").iter().any(|profile| profile["schedulerName"] == SCHEDULER) {
        let message = format!("no profile has the schedulerName {SCHEDULER}");
        return Check::not(State::Failed, name, message, "use the chart's configuration");
    }
    let has = |verb: &str| list("extenders").iter().any(|extender| !extender[verb].is_null());
    if !(has("filterVerb") && has("bindVerb")) {
        let message = "the extender is not called for filter and bind";
        return Check::not(State::Failed, name, message, "use the chart's configuration");
    }
    Check::ok(name, format!("profile {SCHEDULER}, extender for filter and bind"))
}

/// Whether what tenants may not do is refused.
fn admission(facts: &Facts) -> Check {
    let name = "admission policies";
    let (policies, bindings) = match (&facts.admission, &facts.bindings) {
        (Err(error), _) | (_, Err(error)) => return Check::unread(name, error),
        (Ok(policies), Ok(bindings)) => (policies, bindings),
    };
    let named = |metadata: &ObjectMeta| metadata.name.clone().unwrap_or_default();
    let bound = |policy: &str| {
        let mut of = bindings.iter().filter(|binding| binding.spec.policy_name == policy);
        of.any(|binding| binding.spec.validation_actions.iter().any(|action| action == "Deny"))
    };
    let (refuse, others): (Vec<String>, Vec<String>) =
        policies.iter().map(|policy| named(&policy.metadata)).partition(|policy| bound(policy));
    if policies.is_empty() {
        let message = "there are none: whoever may create pods can take GPUs past the plan";
        return Check::not(State::Warning, name, message, "install the chart with policies.enabled");
    }
    if others.is_empty() {
        return Check::ok(name, format!("{} refuse what tenants may not do", refuse.len()));
    }
    let message = format!("no binding makes {} refuse anything", others.join(", "));
    Check::not(State::Warning, name, message, "set policies.validationActions=[Deny]")
}

fn certificates(facts: &Facts, now: Timestamp) -> Vec<Check> {
    let secrets = match &facts.secrets {
        Err(error) => return vec![Check::unread("certificates", error)],
        Ok(secrets) => secrets,
    };
    let mut checks: Vec<Check> = secrets.iter().filter_map(|secret| certificate(secret, now)).collect();
    if checks.is_empty() {
        let fix = "the operator makes one when it starts; is --operator-namespace right?";
        checks.push(Check::not(State::Failed, "certificates", "no Secret holds one", fix));
    }
    checks
}

fn certificate(secret: &CertificateSecret, now: Timestamp) -> Option<Check> {
    let name = format!("certificate {}", secret.metadata.name.as_deref().unwrap_or_default());
    let pem = |bytes: &k8s_openapi::ByteString| String::from_utf8(bytes.0.clone()).unwrap_or_default();
    let certificate = secret.data.certificate.as_ref().map(pem)?;
    let Some(found) = validity(&certificate) else {
        return Some(Check::not(
            State::Failed,
            name,
            "tls.crt is no certificate",
            "delete the Secret: it is made anew",
        ));
    };
    let left = found.until.as_second() - now.as_second();
    let message = format!("ends {}", ago_or_in(left));
    let fix = "it is renewed by itself: see the operator's log, or cert-manager's";
    Some(match left {
        ..=0 => Check::not(State::Failed, name, message, fix),
        _ if found.from > now => Check::not(State::Failed, name, "is not valid yet", "set the clocks"),
        // Self-made certificates live shorter: they are renewed after two thirds of their life.
        _ if left < SOON.min((found.until.as_second() - found.from.as_second()) / 4) => {
            Check::not(State::Warning, name, message, fix)
        }
        _ => Check::ok(name, message),
    })
}

fn policy(facts: &Facts) -> Vec<Check> {
    let name = "EnergyPolicy";
    let policies = match &facts.policies {
        Err(ClusterError::NotServed(_)) => return Vec::new(),
        Err(error) => return vec![Check::unread(name, error)],
        Ok(policies) => policies,
    };
    let mut checks = Vec::new();
    for policy in policies {
        let own = policy.metadata.name.as_deref().unwrap_or_default();
        if own != DEFAULT_POLICY {
            let message = format!("{own} has no effect: only the one named {DEFAULT_POLICY} counts");
            checks.push(Check::not(
                State::Warning,
                name,
                message,
                format!("kubectl delete energypolicy {own}"),
            ));
        }
    }
    let Some(policy) = policies.iter().find(|policy| policy.metadata.name.as_deref() == Some(DEFAULT_POLICY))
    else {
        checks.push(Check::not(
            State::Warning,
            name,
            "there is none: defaults hold (0.2 EUR/kWh, no power budget)",
            "apply deploy/examples/06-energy-policy.yaml with your prices",
        ));
        return checks;
    };
    let status = policy.status.clone().unwrap_or_default();
    if status.observed_generation.is_none() || status.observed_generation < policy.metadata.generation {
        let fix = "the operator writes it within seconds: see its log";
        checks.push(Check::not(State::Failed, name, "the operator has not seen its newest change", fix));
    }
    for kind in ["Ready", "PowerKnown", "BudgetMet"] {
        match condition(&status.conditions, kind).filter(|one| one.status == "False") {
            Some(one) => {
                let fix = "kubectl describe energypolicy default";
                let state = if kind == "PowerKnown" { State::Warning } else { State::Failed };
                checks.push(Check::not(state, format!("{name} {kind}"), one.message.clone(), fix));
            }
            None if kind == "Ready" => checks.push(Check::ok(name, "in force")),
            None => {}
        }
    }
    checks
}
