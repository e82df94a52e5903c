//! Tests with libvirt's own test driver, which is within its library: real calls, without a daemon.

use super::*;
use crate::guest::{Guest, GuestError, Online, Part};
use quell_model::Pid;
use std::time::{Duration, Instant};

const TEST: &str = "test:///default";
/// The domain with which the test driver begins.
const UUID: &str = "6695eb01-f6a4-8304-79aa-97f2502e193f";
const WITHIN: Duration = Duration::from_secs(2);

fn found(domains: &Domains, uuid: &str) -> Found {
    let start = Instant::now();
    loop {
        let found = domains.find(uuid);
        if found != Found::NotYet {
            return found;
        }
        assert!(start.elapsed() < Duration::from_secs(60));
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Whether libvirt is installed.
fn installed() -> bool {
    let there = api::Api::get();
    if let Err(why) = there {
        quell_testkit::skip!(Apps, "{why}");
        return false;
    }
    true
}

#[test]
fn uuids() {
    assert!(is_uuid(UUID));
    for no in [
        "",
        "6695eb01f6a4830479aa97f2502e193f",
        "6695EB01-f6a4-8304-79aa-97f2502e193f",
    ] {
        assert!(!is_uuid(no), "{no}");
    }
}

#[test]
fn a_libvirt_that_is_not_there() {
    let domains = Domains::of("qemu+unix:///system?socket=/nonexistent".into());
    let Found::Away(why) = found(&domains, UUID) else {
        panic!("{:?}", domains.find(UUID));
    };
    assert!(why.contains("libvirt"), "{why}");
    let mut domain = Domain::new(Pid(1), UUID, domains.uri(), WITHIN);
    let error = domain.pins().unwrap_err();
    assert!(matches!(error, GuestError::Libvirt { .. }), "{error}");
}

#[test]
fn a_domain_is_found_and_pinned() {
    if !installed() {
        return;
    }
    let domains = Domains::of(TEST.into());
    assert_eq!(found(&domains, UUID), Found::Running { agents: 0 });
    let nobody = UUID.replace('6', "7");
    assert_eq!(found(&domains, &nobody), Found::Unknown);
    let error = Domain::new(Pid(1), &nobody, TEST, WITHIN).pins();
    let error = error.unwrap_err().to_string();
    assert!(error.contains("virDomainLookupByUUIDString"), "{error}");

    let mut domain = Domain::new(Pid(1), UUID, TEST, WITHIN);
    let before = domain.pins().unwrap();
    let held = before.get(Part::Vcpu(0)).unwrap().clone();
    assert!(held.len() > 1, "{before}");
    // One part is as expected, and one was pinned by another program.
    let mut wanted = before.only(|part| part == Part::Vcpu(0));
    wanted.set(Part::Vcpu(0), held.iter().take(1).collect());
    // The test driver has pins, but none of the running domain only.
    let error = domain
        .pin(std::slice::from_ref(&before), &wanted)
        .unwrap_err();
    assert!(
        error.to_string().contains("virDomainPinVcpuFlags"),
        "{error}"
    );
    let other = [before.only(|part| part != Part::Vcpu(0))];
    assert_eq!(domain.pin(&other, &wanted).unwrap(), before);
    // This thread has run for some time, and not for as long as a virtual CPU that does not exist.
    let me = quell_model::Tid(std::process::id());
    let error = Domain::new(Pid(1), UUID, TEST, WITHIN)
        .with_first(me)
        .pins();
    assert!(error.unwrap_err().to_string().contains("is another's"));
    // The domain has no guest.
    assert!(domain.stat().is_err() && domain.set_online(&Online::First(1)).is_err());
}
