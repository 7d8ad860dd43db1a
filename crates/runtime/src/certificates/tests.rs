//! The rules of renewal, with the time as an argument.

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa};
use x509_parser::prelude::{FromDer as _, ParsedExtension, X509Certificate};

use super::pem::decoded_certificates;
use super::*;

fn hurried(leaf: Option<u64>, authority: Option<u64>) -> CertificateLifetimes {
    CertificateLifetimes::from(CertificateLifetimeArgs {
        renew_certificates_every: leaf,
        renew_authority_every: authority,
    })
}

const NAME: &str = "operator.system.svc";

fn subject() -> Subject {
    Subject { names: vec![NAME.into(), "operator.system".into(), "127.0.0.1".into()] }
}

fn day(days: i64) -> Timestamp {
    Timestamp::from_second(1_800_000_000 + days * 86_400).unwrap()
}

/// One call of [`renew`]; `clients` are the bundles of running clients.
fn step(
    kept: &ServingCertificate,
    given: Option<&ServingCertificate>,
    clients: &[&str],
    now: Timestamp,
) -> Renewal {
    let clients = || clients.iter().map(|bundle| (*bundle).to_owned()).collect();
    renew(
        kept,
        &RenewalInput {
            subject: &subject(),
            lifetimes: CertificateLifetimes::default(),
            now,
            given,
            clients: &clients,
        },
    )
    .unwrap()
}

type Foreign = CertifiedIssuer<'static, KeyPair>;

/// An authority as made by cert-manager or former chart templates.
fn foreign(name: &str) -> Foreign {
    let mut params = CertificateParams::new(vec![]).unwrap();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.distinguished_name.push(DnType::CommonName, name);
    CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap()
}

/// A Secret as cert-manager writes it: `tls.crt`, `tls.key`, `ca.crt`.
fn issued_by(authority: &Foreign) -> ServingCertificate {
    let key = KeyPair::generate().unwrap();
    let params = CertificateParams::new(vec![NAME.to_owned()]).unwrap();
    let chain = params.signed_by(&key, authority).unwrap().pem();
    ServingCertificate { chain, key: key.serialize_pem(), bundle: authority.pem(), authority: None }
}

#[test]
fn the_first_step_makes_an_authority_and_a_leaf_that_its_bundle_verifies() {
    let made = step(&ServingCertificate::default(), None, &[], day(0));
    assert!(made.leaf && made.authority && !made.held);
    for name in [NAME, "operator.system", "127.0.0.1"] {
        assert!(verifies(&made.kept.chain, &made.kept.bundle, name, day(0)), "{name}");
    }
    assert!(!verifies(&made.kept.chain, &made.kept.bundle, "other.system.svc", day(0)));
    assert!(!verifies(&made.kept.chain, &made.kept.bundle, NAME, day(91)), "it expires");
    usable(&made.kept.chain, &made.kept.key).unwrap();
    // Clients' clocks may be up to a day behind.
    let earlier = day(0) - jiff::SignedDuration::from_hours(23);
    assert!(verifies(&made.kept.chain, &made.kept.bundle, NAME, earlier));
}

#[test]
fn certificates_name_keys_as_clients_that_verify_strictly_demand() {
    let made = step(&ServingCertificate::default(), None, &[], day(0)).kept;
    let all = decoded_certificates(&format!("{}{}", made.chain, made.bundle));
    assert_eq!(all.len(), 2);
    for der in all {
        let (_, certificate) = X509Certificate::from_der(&der).unwrap();
        let has = |wanted: fn(&ParsedExtension<'_>) -> bool| {
            certificate.extensions().iter().any(|extension| wanted(extension.parsed_extension()))
        };
        assert!(has(
            |extension| matches!(extension, ParsedExtension::AuthorityKeyIdentifier(id) if id.key_identifier.is_some())
        ));
        assert!(
            !certificate.is_ca()
                || has(|extension| matches!(extension, ParsedExtension::SubjectKeyIdentifier(_)))
        );
    }
}

#[test]
fn nothing_is_renewed_before_two_thirds_of_its_life() {
    let made = step(&ServingCertificate::default(), None, &[], day(0)).kept;
    for days in [0, 1, 30, 59] {
        let next = step(&made, None, &[&made.bundle], day(days));
        assert!(!next.leaf && !next.authority && next.kept == made, "day {days}");
    }
    let next = step(&made, None, &[&made.bundle], day(61));
    assert!(next.leaf && !next.authority && !next.held);
    assert_eq!(next.kept.bundle, made.bundle, "the authority is the same");
    assert!(verifies(&next.kept.chain, &made.bundle, NAME, day(120)));
    assert_ne!(next.kept.key, made.key);
}

#[test]
fn what_was_made_while_the_clock_was_ahead_is_made_again_when_it_is_set_right() {
    let made = step(&ServingCertificate::default(), None, &[], day(3)).kept;
    assert!(!verifies(&made.chain, &made.bundle, NAME, day(0)));
    let next = step(&made, None, &[&made.bundle], day(0));
    assert!(next.leaf && !next.authority && !next.held);
    assert!(
        verifies(&next.kept.chain, &made.bundle, NAME, day(0)),
        "also for a client that has read it before"
    );
    let again = step(&next.kept, None, &[&made.bundle], day(0));
    assert!(!again.leaf && again.kept == next.kept);
}

#[test]
fn clients_of_the_former_authority_verify_what_the_next_one_signs() {
    let first = step(&ServingCertificate::default(), None, &[], day(0)).kept;
    let mut kept = first.clone();
    let mut bundles = vec![first.bundle.clone()];
    // The authority is renewed after 2433 days, that is 6.7 years; its successor's certificate is sent along.
    for day_of in [2434, 4868] {
        let known: Vec<&str> = bundles.iter().map(String::as_str).collect();
        let next = step(&kept, None, &known, day(day_of));
        assert!(next.authority && next.leaf && !next.held, "day {day_of}");
        kept = next.kept;
        for bundle in bundles.iter().filter(|bundle| bundle.as_str() != first.bundle || day_of < 3650) {
            assert!(verifies(&kept.chain, bundle, NAME, day(day_of)), "day {day_of}");
        }
        bundles.push(kept.bundle.clone());
    }
    // An expired authority leaves the bundle.
    assert_eq!(pem::pem_certificates(&kept.bundle).len(), 2);
}

#[test]
fn many_authorities_in_a_row_leave_a_bounded_bundle_and_chain() {
    let lifetimes = hurried(Some(60), Some(60));
    let mut kept = ServingCertificate::default();
    for minute in 0..12 {
        let now = day(0) + jiff::SignedDuration::from_secs(minute * 61);
        let ask = RenewalInput { subject: &subject(), lifetimes, now, given: None, clients: &Vec::new };
        let next = renew(&kept, &ask).unwrap();
        assert!(next.leaf && next.authority, "minute {minute}");
        assert!(verifies(&next.kept.chain, &next.kept.bundle, NAME, now));
        let last_four: Vec<String> = pem::pem_certificates(&next.kept.bundle);
        assert!(last_four.iter().all(|root| verifies(&next.kept.chain, root, NAME, now)), "minute {minute}");
        kept = next.kept;
    }
    assert_eq!(pem::pem_certificates(&kept.bundle).len(), MAX_AUTHORITIES);
    assert!(pem::pem_certificates(&kept.chain).len() <= 5);
}

#[test]
fn no_authority_follows_that_a_running_client_could_not_reach() {
    let lifetimes = hurried(Some(60), Some(60));
    let first = step(&ServingCertificate::default(), None, &[], day(0)).kept;
    let mut kept = first.clone();
    let mut authorities = 1;
    let client = || vec![first.bundle.clone()];
    let none = Vec::<String>::new;
    for minute in 1..12 {
        let now = day(0) + jiff::SignedDuration::from_secs(minute * 61);
        let next = renew(
            &kept,
            &RenewalInput { subject: &subject(), lifetimes, now, given: None, clients: &client },
        )
        .unwrap();
        // The leaf is renewed each time, and the client always verifies it.
        assert!(next.leaf && !next.held, "minute {minute}");
        assert!(verifies(&next.kept.chain, &first.bundle, NAME, now), "minute {minute}");
        authorities += usize::from(next.authority);
        kept = next.kept;
    }
    assert_eq!(authorities, 5, "as many as a chain may have");
    let now = day(0) + jiff::SignedDuration::from_secs(12 * 61);
    let ask = RenewalInput { subject: &subject(), lifetimes, now, given: None, clients: &none };
    assert!(renew(&kept, &ask).unwrap().authority, "the client has gone");
}

#[test]
fn a_given_leaf_under_the_same_authority_is_taken_at_once() {
    let authority = foreign("company");
    let (first, renewed) = (issued_by(&authority), issued_by(&authority));
    let kept = step(&ServingCertificate::default(), Some(&first), &[], day(0)).kept;
    assert_eq!((&kept.chain, &kept.bundle), (&first.chain, &first.bundle));
    let next = step(&kept, Some(&renewed), &[&kept.bundle], day(1));
    assert!(next.leaf && !next.held && next.kept.chain == renewed.chain);
}

#[test]
fn a_given_leaf_of_another_authority_waits_until_those_who_know_only_the_former_have_gone() {
    let (former, latter) = (foreign("former"), foreign("latter"));
    let kept = step(&ServingCertificate::default(), Some(&issued_by(&former)), &[], day(0)).kept;
    let given = issued_by(&latter);
    // A running client knows only the former authority: its leaf stays, and new clients get both authorities.
    let held = step(&kept, Some(&given), &[&kept.bundle], day(1));
    assert!(held.held && !held.leaf && held.kept.chain == kept.chain && held.kept.key == kept.key);
    assert!(verifies(&kept.chain, &held.kept.bundle, NAME, day(1)));
    assert!(verifies(&given.chain, &held.kept.bundle, NAME, day(1)));
    // This remains so from the stored state.
    let still = step(&held.kept, Some(&given), &[&kept.bundle, &held.kept.bundle], day(2));
    assert!(still.held && still.kept == held.kept);
    // Then only clients that know both are left.
    let taken = step(&held.kept, Some(&given), &[&held.kept.bundle], day(3));
    assert!(taken.leaf && !taken.held && taken.kept.chain == given.chain);
}

#[test]
fn no_authority_follows_that_a_running_client_could_not_reach_after_the_leaf_expired() {
    let lifetimes = hurried(Some(60), Some(60));
    let first = step(&ServingCertificate::default(), None, &[], day(0)).kept;
    let client = || vec![first.bundle.clone()];
    let mut kept = first.clone();
    // A leaf lives for three minutes, and a program that is away for four finds it expired.
    for away in 1..12 {
        let now = day(0) + jiff::SignedDuration::from_secs(away * 240);
        let ask = RenewalInput { subject: &subject(), lifetimes, now, given: None, clients: &client };
        let next = renew(&kept, &ask).unwrap();
        assert!(next.leaf && verifies(&next.kept.chain, &first.bundle, NAME, now), "{away}");
        kept = next.kept;
    }
}

#[test]
fn a_secret_of_an_authority_whose_key_is_gone_is_served_until_its_clients_have_gone() {
    let former = issued_by(&foreign("chart"));
    let held = step(&former, None, &[&former.bundle], day(0));
    assert!(held.held && held.authority && held.kept.chain == former.chain);
    assert_eq!(pem::pem_certificates(&held.kept.bundle).len(), 2, "new clients know both");
    let again = step(&held.kept, None, &[&former.bundle], day(1));
    assert!(again.held && !again.authority && again.kept == held.kept, "nothing is written again");
    let taken = step(&held.kept, None, &[&held.kept.bundle], day(2));
    assert!(taken.leaf && !taken.held && !taken.authority);
    assert!(verifies(&taken.kept.chain, &held.kept.bundle, NAME, day(2)));
}

#[test]
fn a_leaf_that_has_expired_is_not_held() {
    let made = step(&ServingCertificate::default(), None, &[], day(0)).kept;
    let given = issued_by(&foreign("company"));
    assert!(step(&made, Some(&given), &[&made.bundle], day(89)).held);
    let late = step(&made, Some(&given), &[&made.bundle], day(91));
    assert!(late.leaf && !late.held);
}

#[test]
fn a_pair_that_does_not_match_is_refused_and_what_is_broken_is_made_anew() {
    let (one, other) = (issued_by(&foreign("a")), issued_by(&foreign("b")));
    let half = ServingCertificate { key: other.key.clone(), ..one.clone() };
    let ask = RenewalInput {
        subject: &subject(),
        lifetimes: CertificateLifetimes::default(),
        now: day(0),
        given: Some(&half),
        clients: &Vec::new,
    };
    assert!(matches!(renew(&one, &ask), Err(CertificatesError::Pair(_))));
    let made = step(&ServingCertificate::default(), None, &[], day(0)).kept;
    for broken in [
        ServingCertificate { key: "rubbish".into(), ..made.clone() },
        ServingCertificate { chain: "rubbish".into(), ..made.clone() },
        ServingCertificate { key: other.key, ..made.clone() },
    ] {
        let next = step(&broken, None, &[&made.bundle], day(1));
        assert!(next.leaf && !next.authority && !next.held);
        assert!(verifies(&next.kept.chain, &made.bundle, NAME, day(1)));
    }
    let orphan = AuthorityPem { key: "rubbish".into(), ..made.authority.clone().unwrap() };
    let next = step(&ServingCertificate { authority: Some(orphan), ..made.clone() }, None, &[], day(1));
    assert!(next.authority && next.leaf);
}

#[test]
fn other_names_ask_for_another_leaf() {
    let made = step(&ServingCertificate::default(), None, &[], day(0)).kept;
    let subject = Subject { names: vec!["renamed.system.svc".into()] };
    let lifetimes = CertificateLifetimes::default();
    let ask = RenewalInput { subject: &subject, lifetimes, now: day(1), given: None, clients: &Vec::new };
    let next = renew(&made, &ask).unwrap();
    assert!(next.leaf && !next.authority);
    assert!(verifies(&next.kept.chain, &made.bundle, "renamed.system.svc", day(1)));
}

#[test]
fn the_look_is_more_frequent_than_the_shortest_life() {
    let usual = Duration::from_secs(10);
    assert_eq!(CertificateLifetimes::default().check_every(usual), usual);
    assert_eq!(hurried(Some(4), None).check_every(usual), Duration::from_secs(1));
    assert_eq!(hurried(None, Some(1)).check_every(usual), Duration::from_millis(250));
}

#[test]
fn keys_are_not_in_debug_output() {
    let made = step(&ServingCertificate::default(), None, &[], day(0)).kept;
    let text = format!("{made:?}{:?}", made.authority);
    assert!(!text.contains("PRIVATE KEY"), "{text}");
}
