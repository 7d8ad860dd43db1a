//! One mail to all its receivers.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use lettre::address::Envelope;
use lettre::message::Mailbox;
use lettre::message::header::ContentType;
use lettre::transport::smtp::Error;
use lettre::{Address, AsyncSmtpTransport, AsyncTransport, Message as Mail, Tokio1Executor};

use super::notices::Message;
use super::send::Failure;

/// The reply of a server that is busy (<https://www.rfc-editor.org/rfc/rfc5321#section-4.2.3>).
const BUSY: u16 = 421;
/// Replies about the login: a password is to be repaired (<https://www.rfc-editor.org/rfc/rfc4954#section-6>).
const LOGIN: [u16; 6] = [432, 454, 530, 534, 535, 538];

/// Sends a message to those of `to` that are not in `settled`: the addresses that have it already, or refused it. Adds to them.
///
/// # Errors
/// [`Failure`]. It names a receiver by its number in `to`, from 1, where not all fail in one way.
pub async fn send(
    server: &AsyncSmtpTransport<Tokio1Executor>,
    from: &Mailbox,
    to: &[Mailbox],
    message: &Message,
    settled: &mut BTreeSet<String>,
) -> Result<(), Failure> {
    let mail = mail(from, to, message).map_err(|error| Failure::Refused(error.to_string()))?;
    let deliver = async |receivers: Vec<Address>| match Envelope::new(Some(from.email.clone()), receivers) {
        Ok(envelope) => server.send_raw(&envelope, &mail).await.map(drop),
        // Nobody is to get it.
        Err(_) => Ok(()),
    };
    let open: Vec<(usize, &Address)> = (1..)
        .zip(to.iter().map(|one| &one.email))
        .filter(|(_, address)| !settled.contains::<str>(address.as_ref()))
        .collect();
    // All at once: the transport ends at the first receiver that the server does not take, and nobody has it.
    if settled.is_empty() && open.len() > 1 {
        match deliver(open.iter().map(|(_, address)| (*address).clone()).collect()).await {
            Ok(()) => return Ok(()),
            Err(error) if open.iter().any(|(_, address)| is_of_receiver(&error, address)) => {}
            Err(error) => return Err(Failure::Later(message_of(&error, from, to), None)),
        }
    }
    let (mut refused, mut put_off) = (Vec::new(), false);
    let mut faults: BTreeMap<String, Vec<usize>> = BTreeMap::new();
    for (number, address) in open {
        let Err(error) = deliver(vec![address.clone()]).await else {
            settled.insert(address.to_string());
            continue;
        };
        let fault = message_of(&error, from, to);
        if !is_of_receiver(&error, address) {
            return Err(Failure::Later(fault, None));
        }
        if error.is_permanent() || error.is_client() {
            refused.push(address.to_string());
        } else {
            put_off = true;
        }
        faults.entry(fault).or_default().push(number);
    }
    settled.extend(refused);
    let faults: Vec<String> = faults
        .into_iter()
        .map(|(fault, numbers)| {
            if numbers.len() == to.len() {
                return fault;
            }
            let numbers: Vec<String> = numbers.iter().map(usize::to_string).collect();
            format!("to: receiver {}: {fault}", numbers.join(", "))
        })
        .collect();
    match (faults.is_empty(), put_off, settled.is_empty()) {
        (true, ..) => Ok(()),
        (_, false, _) => Err(Failure::Refused(faults.join("; "))),
        (_, true, true) => Err(Failure::Later(faults.join("; "), None)),
        (_, true, false) => Err(Failure::PutOff(faults.join("; "))),
    }
}

/// The mail as it is sent: the same to each receiver.
fn mail(from: &Mailbox, to: &[Mailbox], message: &Message) -> Result<Vec<u8>, lettre::error::Error> {
    let mail = Mail::builder()
        .from(from.clone())
        .subject(message.text.as_str())
        .message_id(Some(format!("<{}@andreas.dev>", message.id.replace('/', "."))))
        .header(ContentType::TEXT_PLAIN);
    let mail = to.iter().fold(mail, |mail, one| mail.to(one.clone()));
    Ok(mail.body(message.text.clone())?.formatted())
}

/// Whether another receiver may be taken: the server answered, or it cannot be given this address.
fn is_of_receiver(error: &Error, address: &Address) -> bool {
    let is_ascii = AsRef::<str>::as_ref(address).is_ascii();
    let of_all = |code: u16| code == BUSY || LOGIN.contains(&code);
    error.is_client() && !is_ascii || error.status().is_some_and(|code| !of_all(code.into()))
}

/// An error without the addresses and the login that servers repeat: who reads events may not read the Secret.
fn message_of(error: &Error, from: &Mailbox, to: &[Mailbox]) -> String {
    let code = error.status().map(u16::from);
    if let Some(code) = code.filter(|code| LOGIN.contains(code)) {
        return format!("the server does not take the login ({code})");
    }
    let numbered = (1..).zip(to).map(|(number, one)| (format!("receiver {number}"), one));
    let mut names: Vec<(String, &Mailbox)> = numbered.chain([("from".to_owned(), from)]).collect();
    // An address may be a part of another.
    names.sort_by_key(|(_, one)| Reverse(AsRef::<str>::as_ref(&one.email).len()));
    names
        .iter()
        .fold(error.to_string(), |text, (name, one)| text.replace(AsRef::<str>::as_ref(&one.email), name))
}
