use super::*;

fn period() -> Vec<StepDeclaration> {
    vec![
        StepDeclaration::new("tell", false, &["write"]),
        StepDeclaration::new("open", false, &[]),
        StepDeclaration::new("write", true, &["open"]),
        StepDeclaration::new("collect", true, &["write"]),
    ]
}

fn names(workflow: &Workflow, places: &[usize]) -> Vec<String> {
    places.iter().map(|place| workflow.step(*place).name.clone()).collect()
}

#[test]
fn what_cannot_be_taken_back_is_done_as_late_as_its_needs_allow() {
    let workflow = Workflow::choose(period()).unwrap();
    assert_eq!(workflow.orders_total(), 24);
    assert_eq!(workflow.valid_orders().len(), 2);
    assert_eq!(names(&workflow, workflow.order()), ["open", "write", "collect", "tell"]);
}

#[test]
fn steps_are_taken_back_in_reverse_and_those_that_cannot_be_are_named() {
    let workflow = Workflow::choose(period()).unwrap();
    let mut asked = Vec::new();
    let rollback = workflow.rollback(3, ATTEMPTS, |place| {
        asked.push(workflow.step(place).name.clone());
        true
    });
    assert_eq!(asked, ["collect", "write"]);
    assert_eq!(names(&workflow, &rollback.compensated), ["collect", "write"]);
    assert_eq!(names(&workflow, &rollback.uncompensated), ["open"]);
    assert_eq!((rollback.calls, rollback.rounds, rollback.is_stuck()), (2, 3, false));
}

#[test]
fn an_attempt_that_fails_is_repeated_and_what_still_stands_is_quarantined() {
    let workflow = Workflow::choose(period()).unwrap();
    let mut answers = [false, false, true, false, false, false].into_iter();
    let rollback = workflow.rollback(3, ATTEMPTS, |_| answers.next().unwrap());
    assert_eq!(names(&workflow, &rollback.compensated), ["collect"]);
    assert_eq!(names(&workflow, &rollback.stuck), ["write"]);
    assert_eq!((rollback.calls, rollback.rounds, rollback.is_stuck()), (6, 7, true));
    assert_eq!(answers.next(), None, "three attempts at each");
}

#[test]
fn an_order_that_cannot_work_is_refused_before_anything_runs() {
    let fault = |steps| Workflow::in_order(steps).unwrap_err();
    let (step, requires) = ("tell".to_owned(), "write".to_owned());
    assert_eq!(fault(period()), WorkflowFault::OutOfOrder { step, requires });
    assert_eq!(fault(vec![]), WorkflowFault::Count { count: 0 });
    let many = (0..9).map(|place| StepDeclaration::new(&place.to_string(), true, &[])).collect();
    assert_eq!(fault(many), WorkflowFault::Count { count: 9 });
    let twice = vec![StepDeclaration::new("a", true, &[]); 2];
    assert_eq!(fault(twice), WorkflowFault::Twice { name: "a".into() });
    let unknown = vec![StepDeclaration::new("a", true, &["b"])];
    assert!(matches!(fault(unknown), WorkflowFault::Unknown { .. }));
    let circle = vec![StepDeclaration::new("a", true, &["b"]), StepDeclaration::new("b", true, &["a"])];
    assert_eq!(Workflow::choose(circle).unwrap_err(), WorkflowFault::Circular);
}

#[test]
fn recovery_gives_everything_back_that_can_be() {
    let workflow = Workflow::recovery();
    assert_eq!(workflow.order(), [0, 1, 2, 3, 4]);
    assert_eq!(RecoveryStep::ALL.map(|step| step as usize), [0, 1, 2, 3, 4], "a step knows its place");
    let rollback = workflow.rollback(2, ATTEMPTS, |_| true);
    assert_eq!(names(&workflow, &rollback.compensated), ["pin", "reserve"]);
    let rollback = workflow.rollback(4, ATTEMPTS, |place| place != RecoveryStep::Pin as usize);
    assert_eq!(names(&workflow, &rollback.compensated), ["install", "reserve"]);
    assert_eq!(names(&workflow, &rollback.uncompensated), ["transfer"]);
    assert_eq!(names(&workflow, &rollback.stuck), ["pin"]);
}

#[test]
fn there_are_as_many_attempts_as_may_be_made() {
    let mut attempts = Attempts::first(3);
    assert!(attempts.again() && !attempts.is_last());
    assert!(attempts.again() && attempts.is_last());
    assert!(!attempts.again());
    assert_eq!(attempts.made(), 3);
}
