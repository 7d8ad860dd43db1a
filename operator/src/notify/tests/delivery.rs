//! What receivers answer, and what follows for them and for others.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use andreas_runtime::watch::Index as _;
use kube::runtime::events::Reporter;
use lettre::transport::smtp::authentication::Credentials;
use lettre::{AsyncSmtpTransport, Tokio1Executor};
use parking_lot::Mutex;
use serde_json::json;
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::{TcpListener, TcpStream};

use super::super::addresses::{Book, Channel, Hosts, read};
use super::super::notices::Message;
use super::super::send::{Failure, send};
use super::super::{Events, Notifier};
use super::secret;
use crate::testing::{self, ApiServer, at, slim_job};

/// What a server was told, and the receivers of each mail that it took.
#[derive(Default)]
struct MailLog {
    lines: Vec<String>,
    mails: Vec<Vec<String>>,
}

impl MailLog {
    fn connections(&self) -> usize {
        self.lines.iter().filter(|line| line.starts_with("EHLO ")).count()
    }
}

/// A mail server that answers a line by `reply`, or else takes it.
async fn mail_server(
    reply: impl Fn(&str) -> Option<&'static str> + Clone + Send + Sync + 'static,
) -> (u16, Arc<Mutex<MailLog>>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (port, told) = (listener.local_addr().unwrap().port(), Arc::<Mutex<MailLog>>::default());
    let state = Arc::clone(&told);
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let (reply, told) = (reply.clone(), Arc::clone(&state));
            tokio::spawn(async move {
                // A client that goes away is none of the test's business.
                let _ = talk(stream, reply, &told).await;
            });
        }
    });
    (port, told)
}

async fn talk(
    stream: TcpStream,
    reply: impl Fn(&str) -> Option<&'static str>,
    told: &Mutex<MailLog>,
) -> std::io::Result<()> {
    let mut stream = BufReader::new(stream);
    let (mut receivers, mut text) = (Vec::new(), false);
    stream.write_all(b"220 mail.example.com\r\n").await?;
    loop {
        let mut line = String::new();
        if stream.read_line(&mut line).await? == 0 {
            return Ok(());
        }
        let line = line.trim_end();
        if text && line != "." {
            continue;
        }
        text = line == "DATA";
        if line == "." {
            told.lock().mails.push(std::mem::take(&mut receivers));
        }
        told.lock().lines.push(line.to_owned());
        let answer = reply(line).unwrap_or(if text { "354 go on" } else { "250 AUTH PLAIN" });
        if let (Some(receiver), true) = (line.strip_prefix("RCPT TO:"), answer.starts_with("250")) {
            receivers.push(receiver.trim_matches(['<', '>']).to_owned());
        }
        stream.write_all(format!("{answer}\r\n").as_bytes()).await?;
    }
}

/// A Secret with a mail server at that port.
fn by_mail(port: u16, to: &str) -> super::SlimSecret {
    let server = format!("smtp://127.0.0.1:{port}");
    secret(&[("smtp", &server), ("from", "Andreas <gpu@example.com>"), ("to", to)])
}

fn hosts() -> Hosts {
    andreas_runtime::install_crypto();
    Hosts::new(&["127.0.0.1".to_owned(), "ci.example.com".to_owned()])
}

fn message() -> Message {
    Message { id: "u/Started".to_owned(), text: "runs".to_owned(), event: json!({}) }
}

async fn sent_to(channel: &Channel) -> Result<(), Failure> {
    send(channel, &message(), &mut BTreeSet::new()).await
}

async fn mailed(port: u16, to: &str) -> Result<(), Failure> {
    sent_to(&read(&by_mail(port, to), &hosts()).unwrap().channels[0]).await
}

#[tokio::test]
async fn a_mail_goes_to_all_receivers_at_once_with_the_name_of_its_sender() {
    let (port, told) = mail_server(|_| None).await;
    mailed(port, "ada@example.com, bob@example.com").await.unwrap();
    let told = told.lock();
    assert_eq!(told.mails, [["ada@example.com", "bob@example.com"]]);
    assert_eq!(told.lines[0], "EHLO example.com");
}

#[tokio::test]
async fn a_refused_receiver_keeps_no_other_from_its_mail() {
    let (port, told) =
        mail_server(|line| line.contains("carol").then_some("550 5.1.1 <carol@example.com>: no such user"))
            .await;
    // One address is a part of another.
    let answer = mailed(port, "rol@example.com, carol@example.com, bob@example.com").await.unwrap_err();
    let words = "refused: to: receiver 2: permanent error (550): 5.1.1 <receiver 2>: no such user";
    assert_eq!(answer.to_string(), words, "without a value of the Secret");
    assert_eq!(told.lock().mails, [["rol@example.com"], ["bob@example.com"]]);
}

#[tokio::test]
async fn what_is_wrong_for_all_is_said_once() {
    let (port, told) =
        mail_server(|line| line.starts_with("MAIL").then_some("553 5.7.1 <gpu@example.com>: not yours"))
            .await;
    let answer = mailed(port, "ada@example.com, bob@example.com").await.unwrap_err();
    assert_eq!(answer.to_string(), "refused: permanent error (553): 5.7.1 <from>: not yours");
    assert!(told.lock().mails.is_empty());
}

#[tokio::test]
async fn a_refused_login_is_tried_again() {
    for (command, reply) in [
        ("AUTH", "535 5.7.8 bad credentials"),
        ("AUTH", "534 5.7.9 mechanism too weak"),
        ("AUTH", "538 5.7.11 encryption required"),
        ("AUTH", "454 4.7.0 temporary failure"),
        ("MAIL", "530 5.7.0 authentication required"),
        ("MAIL", "421 4.3.2 shutting down"),
    ] {
        let (port, told) = mail_server(move |line| line.starts_with(command).then_some(reply)).await;
        let server = AsyncSmtpTransport::<Tokio1Executor>::builder_dangerous("127.0.0.1").port(port);
        let server = server.credentials(Credentials::new("u".to_owned(), "p".to_owned())).build();
        let mailbox = |name: &str| format!("{name}@example.com").parse().unwrap();
        let channel =
            Channel::Mail { server, from: mailbox("gpu"), to: vec![mailbox("ada"), mailbox("bob")] };
        let answer = sent_to(&channel).await;
        assert!(
            matches!(&answer, Err(Failure::Later(words, None)) if words.contains(&reply[..3])),
            "{answer:?}"
        );
        // Servers repeat the name.
        let quoted = answer.unwrap_err().to_string().contains(&reply[10..]);
        assert_eq!(quoted, reply.starts_with("421"), "{reply}");
        assert_eq!(told.lock().connections(), 1, "{reply}: no receiver is asked alone");
    }
}

/// The notifier's next look at the jobs, and all that follows at once.
async fn look(notifier: &mut Notifier) {
    notifier.step(at(200));
    while let Some(done) = notifier.working.join_next().await {
        notifier.note(done.unwrap());
    }
}

#[tokio::test]
async fn a_receiver_that_puts_a_mail_off_is_asked_again_alone() {
    let full = Arc::new(AtomicBool::new(true));
    let is_full = Arc::clone(&full);
    let (port, told) = mail_server(move |line| match line {
        line if line.contains("bob") => Some("550 no such user"),
        line if line.contains("carol") && is_full.load(Ordering::Relaxed) => Some("452 mailbox full"),
        _ => None,
    })
    .await;
    let api = ApiServer::new(Vec::new());
    let shared = testing::shared(Arc::default(), &api.client(), at(200));
    let started = json!({"phase": "Running", "attempts": 1, "startTime": at(100).to_string()});
    let job = slim_job(1, &started);
    let uid = job.metadata.uid.clone().unwrap();
    shared.index.lock().apply(job);
    let mut book = Book::new(hosts());
    book.apply(by_mail(port, "ada@example.com, bob@example.com, carol@example.com"));
    let reporter = Reporter { controller: "test".into(), instance: None };
    let (events, _sending) = Events::new(api.client(), reporter);
    let mut notifier = Notifier::new(shared, events, Arc::new(Mutex::new(book)));
    let channel = ("team".to_owned(), "smtp");

    look(&mut notifier).await;
    let words = "smtp: to: receiver 2: permanent error (550): no such user; \
                 to: receiver 3: transient error (452): mailbox full";
    assert_eq!(notifier.channels[&channel].reported.as_ref().unwrap().0, words);
    assert!(notifier.channels[&channel].until.is_none(), "the server works: other runs are told");
    assert_eq!(told.lock().mails, [["ada@example.com"]]);
    let connections = told.lock().connections();
    look(&mut notifier).await;
    assert_eq!(told.lock().connections(), connections, "not at once");
    for pause in [5, 10] {
        assert!(notifier.jobs[&uid].sent.is_empty());
        tokio::time::pause();
        tokio::time::advance(Duration::from_secs(pause)).await;
        tokio::time::resume();
        full.store(pause < 10, Ordering::Relaxed);
        look(&mut notifier).await;
    }
    assert_eq!(told.lock().mails, [["ada@example.com"], ["carol@example.com"]]);
    assert_eq!(told.lock().connections(), connections + 2);
    assert_eq!(notifier.jobs[&uid].sent, BTreeSet::from(["Started/smtp".to_owned()]));
}

/// The answer of a webhook, and how often it was asked.
async fn posted(answer: String) -> (Result<(), Failure>, usize) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let asked = Arc::<Mutex<usize>>::default();
    let count = Arc::clone(&asked);
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            *count.lock() += 1;
            let _ = stream.read(&mut [0; 4096]).await;
            let _ = stream.write_all(format!("{answer}content-length: 0\r\n\r\n").as_bytes()).await;
        }
    });
    let mut addresses = read(&secret(&[("webhook", "https://ci.example.com/hook")]), &hosts()).unwrap();
    let Channel::Webhook { url, .. } = &mut addresses.channels[0] else { panic!("no webhook") };
    *url = format!("http://127.0.0.1:{port}/hook").parse().unwrap();
    let answer = sent_to(&addresses.channels[0]).await;
    let asked = *asked.lock();
    (answer, asked)
}

#[tokio::test]
async fn a_webhook_that_redirects_is_not_followed() {
    let elsewhere = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = elsewhere.local_addr().unwrap().port();
    for status in ["302 Found", "307 Temporary Redirect"] {
        let answer = format!("HTTP/1.1 {status}\r\nlocation: http://127.0.0.1:{port}/\r\n");
        let (answer, asked) = posted(answer).await;
        assert!(
            matches!(&answer, Err(Failure::Refused(words)) if words.starts_with("HTTP 30")),
            "{answer:?}"
        );
        assert_eq!(asked, 1);
    }
    let followed = tokio::time::timeout(Duration::from_millis(100), elsewhere.accept()).await;
    assert!(followed.is_err(), "another host was asked");
}

#[tokio::test]
async fn retry_after_decides_when_a_webhook_is_asked_again() {
    for (answer, wait) in [
        ("429 Too Many Requests\r\nretry-after: 7", Some(7)),
        ("429 Too Many Requests\r\nretry-after: 86400", Some(600)),
        ("429 Too Many Requests", None),
        ("401 Unauthorized", None),
        ("503 Service Unavailable\r\nretry-after: Wed, 21 Oct 2026 07:28:00 GMT", None),
    ] {
        let (failure, _) = posted(format!("HTTP/1.1 {answer}\r\n")).await;
        let Err(Failure::Later(_, after)) = failure else { panic!("{answer}: {failure:?}") };
        assert_eq!(after.map(|after| after.as_secs()), wait, "{answer}");
    }
    for answer in ["400 Bad Request", "403 Forbidden", "404 Not Found"] {
        let (failure, _) = posted(format!("HTTP/1.1 {answer}\r\n")).await;
        assert!(matches!(failure, Err(Failure::Refused(_))), "{answer}: {failure:?}");
    }
}
