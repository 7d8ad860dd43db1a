//! The trainer as a process: its exit codes, checkpoints, gang and posts.
#![allow(clippy::unwrap_used)]

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpListener;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

fn trainer(env: &[(&str, &str)]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_andreas-trainer"));
    command.env_clear().envs(env.iter().copied()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

fn run(env: &[(&str, &str)]) -> (i32, String) {
    finish(trainer(env).spawn().unwrap())
}

fn finish(child: Child) -> (i32, String) {
    let Output { status, stdout, stderr } = child.wait_with_output().unwrap();
    let text = String::from_utf8_lossy(&stdout).into_owned() + &String::from_utf8_lossy(&stderr);
    (status.code().unwrap_or(-1), text)
}

fn terminate(child: &Child) {
    let pid = child.id().to_string();
    assert!(Command::new("kill").args(["-TERM", &pid]).status().unwrap().success());
}

fn epochs_done(dir: &Path) -> f64 {
    saved(dir).unwrap()
}

/// Epochs that the checkpoint has, once there is one.
fn saved(dir: &Path) -> Option<f64> {
    let text = std::fs::read_to_string(dir.join("checkpoint.json")).ok()?;
    serde_json::from_str::<serde_json::Value>(&text).ok()?["epochsDone"].as_f64()
}

fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let since = Instant::now();
    while !holds() {
        assert!(since.elapsed() < Duration::from_secs(20), "not within 20 s: {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Whether it goes on for a while: an end that must not come needs this time to come in.
fn stays(child: &mut Child) -> bool {
    std::thread::sleep(Duration::from_millis(300));
    child.try_wait().unwrap().is_none()
}

/// Reads what a trainer prints up to a line with this text.
fn wait_for_line(child: &mut Child, text: &str) {
    let mut stdout = BufReader::new(child.stdout.take().unwrap());
    let mut line = String::new();
    while !line.contains(text) {
        line.clear();
        assert!(stdout.read_line(&mut line).unwrap() > 0, "it ended before it printed {text:?}");
    }
    // What it prints later is read by nobody, and fits into the pipe.
    child.stdout = Some(stdout.into_inner());
}

#[test]
fn a_stop_saves_and_the_next_attempt_goes_on_from_there() {
    let dir = tempfile::tempdir().unwrap();
    let env = [
        ("CHECKPOINT_DIR", dir.path().to_str().unwrap()),
        ("TRAINER_EPOCHS", "8"),
        ("TRAINER_SECONDS_PER_EPOCH", "0.2"),
    ];
    let child = trainer(&env).spawn().unwrap();
    until("three epochs are saved", || saved(dir.path()).is_some_and(|done| done >= 3.0));
    terminate(&child);
    let (code, text) = finish(child);
    assert_eq!(code, 143, "{text}");
    let done = epochs_done(dir.path());
    assert!((2.0..=5.0).contains(&done), "{done}");

    let began = Instant::now();
    let (code, text) = run(&env);
    assert_eq!(code, 0, "{text}");
    assert!(began.elapsed() < Duration::from_millis(1600), "not from the beginning: {text}");
    assert_eq!(epochs_done(dir.path()), 8.0);
    assert!(text.contains("attempt 2:"), "{text}");
}

#[test]
fn requested_faults_happen() {
    let base =
        [("TRAINER_EPOCHS", "4"), ("TRAINER_SECONDS_PER_EPOCH", "0.05"), ("ANDREAS_GPU_TYPE", "Tesla-T4")];
    let with = |more: &[(&'static str, &'static str)]| run(&[&base, more].concat());
    let (code, text) =
        with(&[("TRAINER_FAIL_AT", "0.5"), ("TRAINER_EXIT_CODE", "7"), ("ANDREAS_ATTEMPT", "1")]);
    assert!(
        code == 7 && text.trim_end().lines().last().unwrap().starts_with("RuntimeError"),
        "{code} {text}"
    );
    let later = [("TRAINER_FAIL_AT", "0.5"), ("TRAINER_FAIL_ATTEMPTS", "1"), ("ANDREAS_ATTEMPT", "2")];
    assert_eq!(with(&later).0, 0);
    let (code, text) = with(&[("TRAINER_OOM_AT", "0"), ("TRAINER_OOM_TYPES", "V100, T4")]);
    assert!(
        code == 1 && text.contains("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate"),
        "{text}"
    );
    assert_eq!(with(&[("TRAINER_OOM_AT", "0"), ("TRAINER_OOM_TYPES", "V100")]).0, 0);
    assert_eq!(with(&[("TRAINER_STOP_AT", "0.5")]).0, 0);
    assert_eq!(with(&[("TRAINER_EPOCHS", "no")]).0, 2);
}

#[test]
fn hung_and_deaf_trainers_behave_so() {
    let hung = [("TRAINER_HANG_AT", "0"), ("TRAINER_SECONDS_PER_EPOCH", "0.05")];
    let mut child = trainer(&hung).spawn().unwrap();
    wait_for_line(&mut child, "hanging at step");
    assert!(stays(&mut child), "hangs");
    terminate(&child);
    assert_eq!(finish(child).0, 143);

    let dir = tempfile::tempdir().unwrap();
    let staying = [
        ("TRAINER_STAY_AT", "0"),
        ("TRAINER_FAIL_ATTEMPTS", "1"),
        ("TRAINER_SECONDS_PER_EPOCH", "0.05"),
        ("CHECKPOINT_DIR", dir.path().to_str().unwrap()),
    ];
    let mut child = trainer(&staying).spawn().unwrap();
    wait_for_line(&mut child, "attempt");
    assert!(stays(&mut child), "stays");
    assert!(saved(dir.path()).is_none(), "no epoch is over");
    terminate(&child);
    assert_eq!(finish(child).0, 143);
    assert!(saved(dir.path()).is_some(), "saved when it was stopped");

    let deaf = [("TRAINER_IGNORE_TERM", "1"), ("TRAINER_SECONDS_PER_EPOCH", "30")];
    let mut child = trainer(&deaf).spawn().unwrap();
    wait_for_line(&mut child, "attempt");
    terminate(&child);
    assert!(stays(&mut child), "deaf");
    child.kill().unwrap();
    child.wait().unwrap();
}

#[test]
fn a_gang_stops_together_and_fails_together() {
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port().to_string();
    let gang = |more: &[(&'static str, &'static str)]| -> Vec<Child> {
        ["1", "0"]
            .iter()
            .map(|rank| {
                let env = [("PET_NNODES", "2"), ("PET_NODE_RANK", *rank), ("PET_MASTER_PORT", &port)];
                let pace = [("TRAINER_EPOCHS", "50"), ("TRAINER_SECONDS_PER_EPOCH", "0.1")];
                trainer(&env).envs(pace).envs(more.iter().copied()).spawn().unwrap()
            })
            .collect()
    };
    let dir = tempfile::tempdir().unwrap();
    let folder: &'static str = dir.path().to_str().unwrap().to_owned().leak();
    let members = gang(&[("CHECKPOINT_DIR", folder)]);
    until("they have trained an epoch together", || saved(dir.path()).is_some());
    // The second hears of it only after it has lost the first, and within the time in which it expects to.
    terminate(&members[0]);
    std::thread::sleep(Duration::from_millis(300));
    terminate(&members[1]);
    let ends: Vec<(i32, String)> = members.into_iter().map(finish).collect();
    assert!(ends.iter().all(|(code, _)| *code == 143), "{ends:?}");

    let ends: Vec<(i32, String)> =
        gang(&[("TRAINER_FAIL_AT", "0.02"), ("TRAINER_FAIL_RANK", "1"), ("TRAINER_EXIT_CODE", "9")])
            .into_iter()
            .map(finish)
            .collect();
    assert_eq!((ends[0].0, ends[1].0), (9, 1), "{ends:?}");
    assert!(ends[1].1.contains("lost peer: rank 1"), "{ends:?}");
}

/// A server that answers every post with this status, and what it was sent.
fn server(status: &'static str) -> (String, mpsc::Receiver<(String, serde_json::Value)>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/status", listener.local_addr().unwrap());
    let (sender, receiver) = mpsc::channel();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut reader = BufReader::new(stream.unwrap());
            let (mut head, mut length) = (String::new(), 0);
            loop {
                let mut line = String::new();
                reader.read_line(&mut line).unwrap();
                if let Some(value) = line.to_lowercase().strip_prefix("content-length:") {
                    length = value.trim().parse().unwrap();
                }
                if line.trim().is_empty() {
                    break;
                }
                head += &line;
            }
            let mut body = vec![0; length];
            reader.read_exact(&mut body).unwrap();
            let answer = format!("HTTP/1.1 {status}\r\ncontent-length: 0\r\nconnection: close\r\n\r\n");
            reader.get_mut().write_all(answer.as_bytes()).unwrap();
            if sender.send((head, serde_json::from_slice(&body).unwrap())).is_err() {
                return;
            }
        }
    });
    (url, receiver)
}

#[test]
fn progress_is_posted_as_the_callbacks_do_and_never_needed() {
    let dir = tempfile::tempdir().unwrap();
    let token = dir.path().join("token");
    std::fs::write(&token, "secret\n").unwrap();
    let (url, posts) = server("200 OK");
    let env = |url: &'static str| {
        [
            ("KUBEFLOW_TRAINER_SERVER_URL", url),
            ("TRAINER_REPORT_SECONDS", "0.2"),
            ("TRAINER_EPOCHS", "10"),
            ("TRAINER_SECONDS_PER_EPOCH", "0.1"),
        ]
    };
    let url: &'static str = url.leak();
    let mut command = trainer(&env(url));
    command.env("KUBEFLOW_TRAINER_SERVER_TOKEN", &token);
    let (code, text) = finish(command.spawn().unwrap());
    assert_eq!(code, 0, "{text}");
    let posts: Vec<_> = posts.try_iter().collect();
    assert!(posts.iter().all(|(head, _)| head.to_lowercase().contains("authorization: bearer secret")));
    let percent: Vec<u64> =
        posts.iter().map(|(_, body)| body["trainerStatus"]["progressPercentage"].as_u64().unwrap()).collect();
    assert!(
        percent.is_sorted() && percent.first() == Some(&0) && percent.last() == Some(&100),
        "{percent:?}"
    );
    assert!((4..=8).contains(&percent.len()), "no more often than allowed: {percent:?}");

    let (url, _posts) = server("500 Internal Server Error");
    let (code, text) = run(&env(url.leak()));
    assert!(code == 0 && text.matches("progress not reported").count() == 1, "{code} {text}");
}

#[test]
fn help_names_every_variable() {
    let output = trainer(&[]).arg("--help").output().unwrap();
    let help = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{help}");
    let names = |text: &str| -> BTreeSet<String> {
        let words = text.split(|c: char| !c.is_ascii_uppercase() && c != '_');
        let of_ours = |word: &&str| word.len() > "TRAINER_".len() && word.starts_with("TRAINER_");
        words.filter(of_ours).map(str::to_owned).collect()
    };
    let read = names(concat!(include_str!("../src/settings.rs"), include_str!("../src/pace.rs")));
    let unnamed: BTreeSet<String> = &read - &names(&help);
    assert!(unnamed.is_empty(), "{unnamed:?}");
}
