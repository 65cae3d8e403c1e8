use engine::time::WallTime;
use expect_test::expect_file;

use super::otlp::SpanResource;
use super::*;

fn span(recorder: &SpanRecorder, name: &str) -> Span {
    let span = recorder.late_root().expect("it is on");
    Span {
        span,
        name: name.to_owned(),
        kind: SpanKind::Internal,
        start_nanos: 1,
        end_nanos: 2,
        attributes: Vec::new(),
        events: Vec::new(),
        error: None,
    }
}

#[test]
fn a_recorder_that_is_off_gives_no_spans() {
    let off = SpanRecorder::default();
    assert!(!off.is_on() && off.root().is_none() && off.late_root().is_none() && off.take(9).is_empty());
    let parent = SpanContext { trace: 1, span: 1 };
    assert_eq!(off.begin(SpanOrigin::Child(parent)), None);
    let on = SpanRecorder::new(1, 1.0);
    for _ in 0..100 {
        let root = on.root().expect("all are sampled");
        let child = on.child(root.context).expect("it is on");
        assert_eq!((child.context.trace, child.parent), (root.context.trace, Some(root.context.span)));
        assert_ne!(child.context.span, root.context.span);
    }
}

#[test]
fn the_requests_of_a_program_are_below_its_span() {
    let (recorder, program) = SpanRecorder::of_program(1);
    assert_eq!(program.parent, None);
    for _ in 0..3 {
        let request = recorder.begin(SpanOrigin::Root).expect("all are recorded");
        assert_eq!(request.context.trace, program.context.trace);
        assert_eq!(request.parent, Some(program.context.span));
        assert_ne!(request.context.span, program.context.span);
    }
}

#[test]
fn the_ratio_is_the_share_of_sampled_requests() {
    let sampled = |ratio| {
        let recorder = SpanRecorder::new(1, ratio);
        (0..10_000).filter(|_| recorder.root().is_some()).count()
    };
    assert_eq!((sampled(0.0), sampled(-1.0), sampled(1.0), sampled(7.0)), (0, 0, 10_000, 10_000));
    assert!((900..1_100).contains(&sampled(0.1)), "{}", sampled(0.1));
    // Slow calls are recorded all the same.
    assert!(SpanRecorder::new(1, 0.0).late_root().is_some());
}

#[test]
fn a_context_survives_its_bytes_and_others_are_ignored() {
    let context = SpanContext { trace: 0x0102 << 64 | 7, span: 9 };
    assert_eq!(SpanContext::from_bytes(&context.to_bytes()), Some(context));
    let empty_span = SpanContext { span: 0, ..context }.to_bytes();
    for bytes in [&[][..], &[1; 23], &[1; 25], &[0; 24], &empty_span] {
        assert_eq!(SpanContext::from_bytes(bytes), None, "{bytes:?}");
    }
}

#[tokio::test]
async fn a_full_queue_loses_the_newest_spans() {
    let recorder = SpanRecorder::new(1, 1.0);
    for number in 0..WAITING_MAX + 3 {
        recorder.record(span(&recorder, &number.to_string()));
    }
    assert_eq!(recorder.lost(), 3);
    recorder.wait().await;
    assert_eq!(recorder.take(2).iter().map(|span| span.name.as_str()).collect::<Vec<_>>(), ["0", "1"]);
    assert_eq!(recorder.take(usize::MAX).len(), WAITING_MAX - 2);
}

#[test]
fn times_of_the_monotonic_clock_are_counted_from_1970() {
    let now = ClockReading { mono: Instant(5_000), wall: WallTime { micros: 10, error_micros: 0 } };
    assert_eq!(since_1970(now, Instant(4_000)), 9_000);
    assert_eq!(since_1970(now, Instant(6_000)), 11_000);
    assert_eq!(since_1970(now, Instant(0)), 5_000);
}

#[test]
fn a_line_is_a_request_of_the_protocol() {
    let resource = SpanResource {
        service: "nyala-tablet-server".to_owned(),
        instance: "07".repeat(16),
        version: "1.2.3",
    };
    let context = SpanContext { trace: 0xa1, span: 0xb2 };
    let spans = [
        Span {
            span: CallSpan { context, parent: None },
            name: "kudu.tserver.TabletServerService/Write".to_owned(),
            kind: SpanKind::Server,
            start_nanos: 1_700_000_000_000_000_000,
            end_nanos: 1_700_000_000_001_000_000,
            attributes: vec![
                ("rpc.method", SpanValue::Text("Write \"\n\u{1}".to_owned())),
                ("nyala.request_bytes", SpanValue::Number(7)),
            ],
            events: vec![("admitted", 1_700_000_000_000_000_100)],
            error: Some("timed out".to_owned()),
        },
        Span {
            span: CallSpan { context: SpanContext { span: 0xc3, ..context }, parent: Some(0xb2) },
            name: "log sync".to_owned(),
            kind: SpanKind::Internal,
            start_nanos: 1_700_000_000_000_000_000,
            end_nanos: 1_700_000_000_000_500_000,
            attributes: Vec::new(),
            events: Vec::new(),
            error: None,
        },
    ];
    let line = otlp::line(&resource, &spans);
    assert_eq!(line.find('\n'), Some(line.len() - 1), "one line");
    let object: serde_json::Value = serde_json::from_str(&line).expect("JSON");
    let shown = serde_json::to_string_pretty(&object).expect("JSON") + "\n";
    expect_file!["otlp_line.json"].assert_eq(&shown);
}
