//! Two operators, one of them frozen with writes in hand.

use std::time::Instant;

use andreas_api::phase::Phase;
use andreas_e2e::cluster::{Cluster, Options, a100};
use andreas_e2e::job::{Job, job};
use andreas_e2e::scenario::{DEFAULT_TIMEOUT, scenario};
use andreas_testbed::faults::{Fault, Record, Rule, Select};
use andreas_testbed::wait::until;
use anyhow::{Context as _, Result, ensure};

/// Writes in flight at a time: the others wait in the process.
const IN_FLIGHT: u64 = 2;

async fn leader(c: &Cluster) -> Result<usize> {
    let ask = "get lease andreas-operator -n andreas-system -o jsonpath={.spec.holderIdentity}";
    let holder = c.kubectl(ask).await?;
    let number = holder.trim().strip_prefix("operator-").with_context(|| format!("no leader: {holder}"))?;
    Ok(number.parse()?)
}

/// A write that was accepted and that only a leader makes.
fn accepted(record: &Record, caller: &str) -> bool {
    record.caller == caller
        && record.verb.writes()
        && record.upstream_status.is_some_and(|status| status < 300)
        && !matches!(record.resource.as_str(), "leases" | "tokenreviews")
}

#[tokio::test(flavor = "multi_thread")]
async fn a_frozen_leader_writes_nothing_after_the_next_ones_first_write() -> Result<()> {
    let options = Options {
        fault_proxy: true,
        operators: 2,
        groups: vec![a100(2)],
        operator_args: vec!["--writes".into(), IN_FLIGHT.to_string()],
        ..Options::default()
    };
    scenario(options, async |c| {
        let _keeper = c.keep_operators_running();
        // It goes on: what is written at its end would be held in place of the burst's writes.
        let first = job("first").gpus(1, 1).epochs(1000, 0.3).spec("preemption", "Never".into());
        let first = first.env("TRAINER_NO_PROGRESS", 1);
        c.submit(&first).await?;
        c.wait_for_phase(&first, Phase::Running).await?;
        let old = leader(c).await?;
        let (old_name, new_name) = (format!("operator-{old}"), format!("operator-{}", 1 - old));

        // given a leader with more writes in hand than may be in flight, whose answers do not come
        let held = c.faults()?.add(Rule::new(Select::writes().caller(&old_name), Fault::HoldAnswer));
        let jobs: Vec<Job> = (0..8)
            .map(|i| job(&format!("burst-{i}")).gpus(1, 1).epochs(6, 0.3).env("TRAINER_NO_PROGRESS", 1))
            .collect();
        for tj in &jobs {
            c.submit(tj).await?;
        }
        c.faults()?.until_held(held, IN_FLIGHT, DEFAULT_TIMEOUT).await?;
        // when it is frozen, the other takes over and writes
        c.operators[old].process.pause()?;
        let starts = c.operators[old].process.starts();
        let took_over =
            c.faults()?.until(DEFAULT_TIMEOUT, |all| all.0.iter().any(|r| accepted(r, &new_name))).await;
        ensure!(took_over, "nobody took over");
        // and it goes on with what it had in hand
        c.faults()?.remove(held);
        let process = c.operators[old].process.clone();
        process.resume()?;
        let woken = Instant::now();
        until("the old leader ended", DEFAULT_TIMEOUT, async || Ok(process.starts() > starts)).await?;
        println!("ended and started again {:.2} s after it woke", woken.elapsed().as_secs_f64());
        let keys: Vec<String> = jobs.iter().map(Job::key).collect();
        c.observer
            .until("all succeeded", 2 * DEFAULT_TIMEOUT, |s| {
                keys.iter().all(|k| s.phase(k) == Phase::Succeeded)
            })
            .await?;

        // then none of its writes was accepted after the other's first
        let all = c.faults()?.records();
        let begun = all.0.iter().find(|r| accepted(r, &new_name)).map(|r| r.at).context("no write")?;
        let late = all.only(|r| accepted(r, &old_name) && r.at > begun);
        ensure!(
            late.is_empty(),
            "accepted late: {:?}",
            late.0.iter().map(Record::describe).collect::<Vec<_>>()
        );
        by_the_audit_log(c, &old_name, &new_name)?;
        for key in &keys {
            let status = c.observer.seen().status(key);
            ensure!(status.attempts == 1 && status.cluster_failures == 0, "{key}: {:?}", status.history);
        }
        Ok(())
    })
    .await
}

/// The same by what the API server itself recorded.
fn by_the_audit_log(c: &Cluster, old: &str, new: &str) -> Result<()> {
    let mut first_of_new: Option<String> = None;
    let mut last_of_old: Option<(String, String)> = None;
    for event in c.testbed.audit_log()? {
        let event = event?;
        let writes = matches!(event.verb.as_str(), "create" | "update" | "patch" | "delete");
        let resource = event.object_ref.resource.as_str();
        if !writes || !(200..300).contains(&event.code()) || matches!(resource, "leases" | "tokenreviews") {
            continue;
        }
        let by = |name: &str| event.user_agent.ends_with(&format!("({name})"));
        let at = event.stage_timestamp.clone();
        if by(new) && first_of_new.as_ref().is_none_or(|first| at < *first) {
            first_of_new = Some(at);
        } else if by(old) && last_of_old.as_ref().is_none_or(|(last, _)| at > *last) {
            last_of_old = Some((at, event.request_uri.clone()));
        }
    }
    let first = first_of_new.context("the new leader wrote nothing")?;
    let (last, uri) = last_of_old.context("the old leader wrote nothing")?;
    println!("last write of the old leader {last}, first of the new {first}");
    ensure!(last < first, "{uri} was accepted at {last}, after {first}");
    Ok(())
}
