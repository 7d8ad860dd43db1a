//! Any program as a process of a sandbox: watched, killed, paused, restarted, and gone with all its children.

mod common;

use std::time::Duration;

use andreas_testbed::{Process, ProcessError, ProcessSpec, ProcessState, Sandbox, wait};
use common::{LIMIT, eventually, is_alive, process_state};

fn sh(name: &str, script: &str) -> ProcessSpec {
    ProcessSpec::new(name, "/bin/sh").args(["-c", script])
}

#[tokio::test]
async fn a_process_is_paused_resumed_stopped_and_restarted() {
    // given a program that ticks and ends well on SIGTERM, without children: a shell whose child is stopped between vfork and exec
    // waits for it, and is not stopped itself
    let sandbox = Sandbox::new("ticks").unwrap();
    let script = r#"trap 'echo bye; exit 7' TERM; echo "hello $WHO"; exec 9<> <(:)
        while :; do echo tick; read -rt 0.05 -u 9; done"#;
    let ticker = ProcessSpec::new("ticker", "/bin/bash").args(["-c", script]).env("WHO", "you");
    let ticker = Process::start(&sandbox, ticker).unwrap();
    ticker.wait_for_log("hello you", LIMIT).await.unwrap();

    // when it is paused, then it logs no more, until it is resumed
    ticker.pause().unwrap();
    assert_eq!(ticker.state(), ProcessState::Paused);
    let pid = ticker.pid().unwrap();
    eventually("it is stopped", || async { process_state(pid) == Some('T') }).await;
    let before = ticker.log();
    wait::stays("silent", Duration::from_millis(300), async || Ok(ticker.log() == before)).await.unwrap();
    ticker.resume().unwrap();
    eventually("it ticks on", || async { ticker.log().len() > before.len() }).await;

    // when it is stopped while paused, then it still ends gently; started again it logs from a new beginning
    ticker.pause().unwrap();
    assert_eq!(ticker.stop().await, ProcessState::Exited(7));
    assert!(ticker.log().ends_with("bye\n"));
    ticker.reconfigure(|spec| spec.env("WHO", "again"));
    ticker.restart().await.unwrap();
    ticker.wait_for_log("hello again", LIMIT).await.unwrap();
    assert!(!ticker.log().contains("bye") && ticker.starts() == 2);

    // when it is killed, then it is said so, and signals are refused
    ticker.kill();
    assert_eq!(ticker.state(), ProcessState::Signalled(9));
    assert!(matches!(ticker.pause(), Err(ProcessError::NotRunning { .. })));
}

#[tokio::test]
async fn a_wait_ends_early_with_the_log_when_the_process_ends() {
    let sandbox = Sandbox::new("fails").unwrap();
    let failing = Process::start(&sandbox, sh("failing", "echo no such flag >&2; exit 2")).unwrap();
    let error = failing.wait_for_port("127.0.0.1:1", LIMIT).await.unwrap_err().to_string();
    assert!(error.contains("exit code 2") && error.contains("no such flag"), "{error}");

    let missing = Process::start(&sandbox, ProcessSpec::new("missing", "/nowhere/program")).unwrap_err();
    assert!(missing.to_string().contains("/nowhere/program"), "{missing}");
}

#[tokio::test]
async fn grandchildren_in_sessions_of_their_own_go_with_the_sandbox() {
    // given a program whose grandchild has left its process group
    let sandbox = Sandbox::new("family").unwrap();
    let file = sandbox.folder().join("grandchild");
    let script = format!(
        "setsid sh -c 'echo $$ > {}.new; mv {0}.new {0}; exec sleep 600' & sleep 600",
        file.display()
    );
    let parent = Process::start(&sandbox, sh("parent", &script)).unwrap();
    eventually("a grandchild", || async { file.exists() }).await;
    let grandchild: u32 = std::fs::read_to_string(&file).unwrap().trim().parse().unwrap();
    let outside = tempfile::NamedTempFile::new().unwrap();
    sandbox.also_remove(outside.path()).unwrap();

    // when the program is killed, then the grandchild lives on; when the sandbox goes, everything goes
    parent.kill();
    assert!(is_alive(grandchild));
    let folder = sandbox.folder().to_owned();
    drop(sandbox);
    assert!(!is_alive(grandchild) && !folder.exists() && !outside.path().exists());
}
