//! Every write of the operator, interrupted: it is killed once the API server has done the write, or only the answer is lost.
//!
//! The writes of five scenarios are counted on an undisturbed run. Then each scenario is run again for each of its writes, in a
//! namespace of its own on one shared cluster. The end must be the same.

mod case;

use std::collections::BTreeMap;
use std::time::Duration;

use andreas_api::phase::Phase;
use andreas_e2e::cluster::{A100, Cluster, Group, Options, a100, short_runs};
use andreas_e2e::job::job;
use andreas_e2e::keeper::at_full_length;
use andreas_e2e::nodes::client;
use andreas_e2e::scenario::{DEFAULT_TIMEOUT, scenario};
use andreas_testbed::faults::{Fault, Rule, RuleId, Select, Share};
use andreas_testbed::wait::until;
use anyhow::{Context as _, Result, ensure};
use serde_json::json;

use case::{Case, RunKind};

const OPERATOR: &str = "operator-0";
/// The operator is killed after every so many of a scenario's writes; at full length after each.
const EVERY: u64 = 3;
/// What was observed of a run is written up to a second after its end.
const OBSERVED: Duration = Duration::from_secs(5);
/// How often a write that did not come is waited for again, in another run.
const TRIES: u64 = 3;

/// The operator's writes in a namespace. Events may be lost: nothing follows from them.
fn writes_in(namespace: &str) -> Select {
    Select::writes().without("events").caller(OPERATOR).namespace(namespace)
}

/// Nodes of one GPU: two GPUs are a gang of two.
fn options() -> Options {
    let nodes = Group { prefix: "one-", count: 12, gpu: A100, gpus: 1, memory_mib: 81_920 };
    Options {
        fault_proxy: true,
        groups: vec![nodes],
        operator_log: "info,andreas_operator=debug,kube=warn",
        heavy: true,
        adopt: &["Job"],
        ..Options::default()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_operator_or_a_lost_answer_after_any_write_changes_no_end() -> Result<()> {
    scenario(options(), async |c| {
        let _keeper = c.keep_operators_running();
        c.collect_garbage().await?;
        let counts = writes_of_undisturbed_runs(c).await?;
        every_answer_is_lost_once(c, &counts).await?;
        the_operator_is_killed_after_writes(c, &counts).await?;
        nothing_is_left(c).await
    })
    .await
}

/// The wake of a node's GPUs is a write of no namespace.
#[tokio::test(flavor = "multi_thread")]
async fn a_killed_operator_or_a_lost_answer_after_a_wake_changes_no_end() -> Result<()> {
    let mut policy = short_runs();
    policy["rest"] = json!({"mode": "On", "after": "1s"});
    let options = Options {
        groups: vec![a100(1)],
        agents: true,
        gpus_kept_busy: true,
        fault_proxy: true,
        policy,
        ..Options::default()
    };
    scenario(options, async |c| {
        let _keeper = c.keep_operators_running();
        let faults = [Fault::LoseAnswer, Fault::GatewayTimeout, Fault::HoldAnswer];
        for (n, fault) in faults.into_iter().enumerate() {
            // given a node whose GPUs rest
            let rests = async || {
                let nodes = client(&c.testbed).nodes().await?;
                let mut hardware = nodes.iter().flat_map(|node| &node.hardware).peekable();
                Ok(hardware.peek().is_some() && hardware.all(|gpu| !gpu.at_defaults))
            };
            until("all GPUs rest", 2 * DEFAULT_TIMEOUT, rests).await?;
            // when the write that wakes them for a job is interrupted
            let kills = fault == Fault::HoldAnswer;
            let wakes = Select::writes().resource("gpunodes").caller(OPERATOR);
            let rule = c.faults()?.add(Rule::new(wakes, fault).share(Share::Nth(1)));
            let tj = job(&format!("woken-{n}")).gpus(4, 1).epochs(4, 0.3);
            c.submit(&tj).await?;
            if kills {
                c.faults()?.until_held(rule, 1, DEFAULT_TIMEOUT).await?;
                c.operators[0].process.kill();
            } else {
                c.faults()?.until_met(rule, 1, DEFAULT_TIMEOUT).await?;
            }
            c.faults()?.remove(rule);
            // then the job runs once
            c.wait_for_phase(&tj, Phase::Succeeded).await?;
            let status = c.observer.seen().status(&tj.key());
            ensure!(status.attempts == 1, "{:?}", status.history);
        }
        Ok(())
    })
    .await
}

/// How many writes each scenario has.
async fn writes_of_undisturbed_runs(c: &mut Cluster) -> Result<BTreeMap<RunKind, u64>> {
    let mut cases: Vec<Case> = RunKind::ALL.into_iter().map(|kind| Case::new(kind, "counted", 0)).collect();
    for case in &cases {
        case.begin(c).await?;
    }
    case::drive(c, &mut cases, 2 * DEFAULT_TIMEOUT).await?;
    tokio::time::sleep(OBSERVED).await;
    let mut counts = BTreeMap::new();
    for case in &cases {
        case.check(c)?;
        let select = writes_in(&case.namespace);
        let writes = c.faults()?.records().only(|r| select.selects_record(r));
        let words: Vec<String> = writes.0.iter().map(|r| format!("{:?} {}", r.verb, r.resource)).collect();
        println!("{:?}: {} writes: {}", case.kind, words.len(), words.join(", "));
        ensure!(words.len() >= 3, "{:?} has too few writes: {words:?}", case.kind);
        counts.insert(case.kind, u64::try_from(words.len())?);
    }
    Ok(counts)
}

fn interrupt(c: &Cluster, case: &Case, fault: Fault) -> Result<RuleId> {
    let rule = Rule::new(writes_in(&case.namespace), fault).share(Share::Nth(case.write));
    Ok(c.faults()?.add(rule))
}

/// Two writes may be made as one: a write that did not come is tried again. One that never came was not made.
fn never_made(c: &Cluster, case: &Case) -> Result<()> {
    let select = writes_in(&case.namespace);
    let made = c.faults()?.records().only(|r| select.selects_record(r)).len();
    ensure!((made as u64) < case.write, "{}: {made} writes, and none was interrupted", case.namespace);
    println!("{}: {made} writes in the last of {TRIES} tries", case.namespace);
    Ok(())
}

/// All at once: they do not disturb each other.
async fn every_answer_is_lost_once(c: &mut Cluster, counts: &BTreeMap<RunKind, u64>) -> Result<()> {
    let all = counts.iter().flat_map(|(&kind, &count)| (1..=count).map(move |write| (kind, write)));
    let mut open: Vec<(RunKind, u64)> = all.collect();
    let total = open.len();
    for round in 1..=TRIES {
        let (mut cases, mut rules) = (Vec::new(), Vec::new());
        for &(kind, write) in &open {
            let case = Case::new(kind, &format!("lost{round}"), write);
            let fault = if write % 2 == 0 { Fault::LoseAnswer } else { Fault::GatewayTimeout };
            rules.push(interrupt(c, &case, fault)?);
            case.begin(c).await?;
            cases.push(case);
            // The first ones may end before the last one begins.
            case::act(c, &mut cases).await?;
        }
        case::drive(c, &mut cases, 6 * DEFAULT_TIMEOUT).await?;
        open.clear();
        for (case, rule) in cases.iter().zip(rules) {
            case.check(c).with_context(|| calls_and_log_of(c, case))?;
            if c.faults()?.until_met(rule, 1, OBSERVED).await.is_err() {
                open.push((case.kind, case.write));
                if round == TRIES {
                    never_made(c, case)?;
                }
            }
        }
    }
    println!("answers lost: {} of {total}", total - open.len());
    ensure!(open.len() * 10 <= total, "not lost: {open:?}");
    Ok(())
}

/// One after the other; the earlier ones end meanwhile.
async fn the_operator_is_killed_after_writes(c: &mut Cluster, counts: &BTreeMap<RunKind, u64>) -> Result<()> {
    let every = if at_full_length() { 1 } else { EVERY };
    let mut cases: Vec<Case> = Vec::new();
    let (mut killed, mut total) = (0, 0);
    for (number, (&kind, &count)) in counts.iter().enumerate() {
        let first = 1 + u64::try_from(number)? % every;
        for write in (first..=count).step_by(usize::try_from(every)?) {
            total += 1;
            for round in 1..=TRIES {
                let case = Case::new(kind, &format!("killed{round}"), write);
                let rule = interrupt(c, &case, Fault::HoldAnswer)?;
                case.begin(c).await?;
                cases.push(case);
                let held = held_or_ended(c, &mut cases, rule).await?;
                if held {
                    c.operators[0].process.kill();
                }
                c.faults()?.remove(rule);
                if held {
                    killed += 1;
                    break;
                }
                if round == TRIES {
                    never_made(c, cases.last().context("no case")?)?;
                }
            }
        }
    }
    case::drive(c, &mut cases, 4 * DEFAULT_TIMEOUT).await?;
    for case in &cases {
        case.check(c).with_context(|| calls_and_log_of(c, case))?;
    }
    println!("operator killed after {killed} of {total} writes");
    ensure!(killed * 10 >= total * 9, "killed after {killed} of {total} writes only");
    Ok(())
}

/// The operator's calls and words about a case.
fn calls_and_log_of(c: &Cluster, case: &Case) -> String {
    let select = Select::all().caller(OPERATOR).namespace(&case.namespace);
    let calls =
        c.faults().map(|faults| faults.records().only(|r| select.selects_record(r))).unwrap_or_default();
    let calls = calls.0.iter().map(|call| {
        format!(
            "{:?} {:?} {} {:?} {:?}",
            call.at, call.verb, call.resource, call.status, call.upstream_status
        )
    });
    let log = c.operators[0].process.log();
    let lines = log.lines().filter(|line| line.contains(&case.namespace)).map(str::to_owned);
    calls.chain(lines).collect::<Vec<_>>().join("\n")
}

/// Waits until the last case's write is done and its answer held; `false` when the case ended without that write.
async fn held_or_ended(c: &mut Cluster, cases: &mut [Case], rule: RuleId) -> Result<bool> {
    let end = std::time::Instant::now() + 2 * DEFAULT_TIMEOUT;
    loop {
        if c.faults()?.until_held(rule, 1, Duration::from_millis(50)).await.is_ok() {
            return Ok(true);
        }
        case::act(c, cases).await?;
        let last = cases.last().context("no case")?;
        if last.has_ended(&c.observer.seen()) {
            return Ok(c.faults()?.until_held(rule, 1, OBSERVED).await.is_ok());
        }
        ensure!(std::time::Instant::now() < end, "{}: write {} did not come", last.namespace, last.write);
    }
}

/// With the jobs everything of theirs goes.
async fn nothing_is_left(c: &mut Cluster) -> Result<()> {
    for kind in ["jobs", "trainingjobs"] {
        c.kubectl(&format!("delete {kind} --all --all-namespaces --wait=true --timeout=120s")).await?;
    }
    c.observer
        .until("no pod is left", 2 * DEFAULT_TIMEOUT, |s| {
            s.pods.values().all(|p| p.deleted || p.label(andreas_api::names::LABEL_JOB).is_empty())
        })
        .await?;
    let mut services = String::new();
    let gone = async || {
        services = c.kubectl("get services --all-namespaces -o name").await?;
        Ok(!services.contains("-gang-"))
    };
    let waited = until("no Service is left", DEFAULT_TIMEOUT, gone).await;
    waited.with_context(|| services)?;
    Ok(())
}
