//! Compensation (chapter 5, row 16): work in steps that are taken back in reverse when a later one fails.
//!
//! Steps declare what they need, and the order is checked before anything runs, not found out half way. Some
//! steps cannot be taken back; the order decides how many of those a failure leaves behind. Taking back can
//! fail itself: it has attempts of its own, and what still stands afterwards is quarantined and named, never
//! forgotten.

/// Attempts at taking one step back (chapter 5: 3).
pub const ATTEMPTS: u32 = 3;

/// How often taking one step back has been tried, where it is known at once or only later whether that worked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attempts {
    made: u32,
    most: u32,
}

impl Attempts {
    /// The first of at most so many.
    ///
    /// # Panics
    /// If none may be made.
    #[must_use]
    pub fn first(most: u32) -> Attempts {
        assert!(most > 0, "taking back is tried");
        Attempts { made: 1, most }
    }

    /// The last one has not worked: whether there is another one.
    pub fn again(&mut self) -> bool {
        let may = self.made < self.most;
        self.made += u32::from(may);
        may
    }

    /// Attempts made.
    #[must_use]
    pub fn made(&self) -> u32 {
        self.made
    }

    /// Whether there is no other one after this.
    #[must_use]
    pub fn is_last(&self) -> bool {
        self.made == self.most
    }
}

/// Steps a workflow may have: all their orders can be looked at.
pub const STEPS_MAX: usize = 8;

/// A step, as declared.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StepDeclaration {
    /// Its name.
    pub name: String,
    /// Whether it can be taken back.
    pub compensable: bool,
    /// Names of steps that must be done before it.
    pub requires: Vec<String>,
}

impl StepDeclaration {
    /// A step of these words.
    #[must_use]
    pub fn new(name: &str, compensable: bool, requires: &[&str]) -> StepDeclaration {
        let requires = requires.iter().map(|name| (*name).to_owned()).collect();
        StepDeclaration { name: name.into(), compensable, requires }
    }
}

/// Steps of recovering a block from a peer, as chapter 5 has them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecoveryStep {
    /// A slot of this node is taken.
    Reserve,
    /// The source keeps the block for us.
    Pin,
    /// Its bytes come. What has been begun is not taken back: it is thrown away as it comes.
    Transfer,
    /// The copy is shown.
    Install,
    /// The engine is told, and cannot be told otherwise.
    TellEngine,
}

impl RecoveryStep {
    /// All of them, in the order in which a node does them.
    pub const ALL: [RecoveryStep; 5] = [
        RecoveryStep::Reserve,
        RecoveryStep::Pin,
        RecoveryStep::Transfer,
        RecoveryStep::Install,
        RecoveryStep::TellEngine,
    ];

    fn declaration(self) -> StepDeclaration {
        match self {
            RecoveryStep::Reserve => StepDeclaration::new("reserve", true, &[]),
            RecoveryStep::Pin => StepDeclaration::new("pin", true, &["reserve"]),
            RecoveryStep::Transfer => StepDeclaration::new("transfer", false, &["reserve", "pin"]),
            RecoveryStep::Install => StepDeclaration::new("install", true, &["transfer"]),
            RecoveryStep::TellEngine => StepDeclaration::new("tell-engine", false, &["install"]),
        }
    }
}

/// Why declared steps are no workflow.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WorkflowFault {
    /// There are none, or too many to look at all orders.
    #[error("{count} steps: a workflow has 1 to {STEPS_MAX}")]
    Count {
        /// How many there are.
        count: usize,
    },
    /// Two have one name.
    #[error("two steps are called {name:?}")]
    Twice {
        /// The name.
        name: String,
    },
    /// One needs what is not there.
    #[error("step {step:?} needs {requires:?}, which is no step")]
    Unknown {
        /// The step.
        step: String,
        /// What it needs.
        requires: String,
    },
    /// They need each other.
    #[error("no order of the steps gives each what it needs")]
    Circular,
    /// One stands before what it needs.
    #[error("step {step:?} stands before {requires:?}, which it needs")]
    OutOfOrder {
        /// The step.
        step: String,
        /// What it needs.
        requires: String,
    },
}

/// An order of steps, and what failures at each of them would cost in sum.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ordering {
    /// Steps by their place in the declaration.
    pub steps: Vec<usize>,
    /// Steps left behind because they cannot be taken back, summed over a failure at each step.
    pub uncompensated: u64,
    /// Rounds that taking back takes, summed likewise, if no attempt fails.
    pub rounds: u64,
}

/// How a rollback went.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rollback {
    /// Attempts made.
    pub calls: u64,
    /// Rounds it took: one for each step, and one for each attempt at it after the first.
    pub rounds: u64,
    /// Steps taken back, in the order of that.
    pub compensated: Vec<usize>,
    /// Steps that cannot be taken back.
    pub uncompensated: Vec<usize>,
    /// Steps of which every attempt failed: quarantined until somebody looks.
    pub stuck: Vec<usize>,
}

impl Rollback {
    /// Whether something is quarantined.
    #[must_use]
    pub fn is_stuck(&self) -> bool {
        !self.stuck.is_empty()
    }
}

/// Steps that fit together, and the order they are done in.
#[derive(Clone, Debug)]
pub struct Workflow {
    steps: Vec<StepDeclaration>,
    /// For each step, places of the steps that it needs.
    needs: Vec<Vec<usize>>,
    order: Vec<usize>,
}

impl Workflow {
    /// A workflow in the order that leaves least behind; among equals the quickest to take back, then the
    /// one nearest to the declaration.
    ///
    /// # Errors
    /// [`WorkflowFault`], except for a step that stands before what it needs.
    pub fn choose(steps: Vec<StepDeclaration>) -> Result<Workflow, WorkflowFault> {
        let mut workflow = Workflow::declared(steps)?;
        let orders = workflow.valid_orders();
        let best = orders.into_iter().min_by_key(|order| (order.uncompensated, order.rounds));
        workflow.order = best.ok_or(WorkflowFault::Circular)?.steps;
        Ok(workflow)
    }

    /// A workflow in the order of its declaration.
    ///
    /// # Errors
    /// [`WorkflowFault`].
    pub fn in_order(steps: Vec<StepDeclaration>) -> Result<Workflow, WorkflowFault> {
        let workflow = Workflow::declared(steps)?;
        for (place, needs) in workflow.needs.iter().enumerate() {
            if let Some(&late) = needs.iter().find(|needed| **needed >= place) {
                let name = |place: usize| workflow.steps[place].name.clone();
                return Err(WorkflowFault::OutOfOrder { step: name(place), requires: name(late) });
            }
        }
        Ok(workflow)
    }

    /// The steps of [`RecoveryStep::ALL`], in that order.
    ///
    /// # Panics
    /// If one stands before what it needs: a node that was built so does not start.
    #[must_use]
    pub fn recovery() -> Workflow {
        let steps = RecoveryStep::ALL.map(RecoveryStep::declaration).to_vec();
        Workflow::in_order(steps).expect("each step stands behind what it needs")
    }

    fn declared(steps: Vec<StepDeclaration>) -> Result<Workflow, WorkflowFault> {
        let count = steps.len();
        if !(1..=STEPS_MAX).contains(&count) {
            return Err(WorkflowFault::Count { count });
        }
        let place_of = |name: &String| steps.iter().position(|step| step.name == *name);
        let mut needs = Vec::new();
        for (place, step) in steps.iter().enumerate() {
            if place_of(&step.name) != Some(place) {
                return Err(WorkflowFault::Twice { name: step.name.clone() });
            }
            let places = step.requires.iter().map(|name| {
                let fault = || WorkflowFault::Unknown { step: step.name.clone(), requires: name.clone() };
                place_of(name).ok_or_else(fault)
            });
            needs.push(places.collect::<Result<Vec<_>, _>>()?);
        }
        Ok(Workflow { needs, order: (0..count).collect(), steps })
    }

    /// The step at a place of the declaration.
    #[must_use]
    pub fn step(&self, place: usize) -> &StepDeclaration {
        &self.steps[place]
    }

    /// Steps in the order they are done in.
    #[must_use]
    pub fn order(&self) -> &[usize] {
        &self.order
    }

    /// Orders there are, valid or not.
    #[must_use]
    pub fn orders_total(&self) -> u64 {
        (1..=self.steps.len() as u64).product()
    }

    /// Every order that gives each step what it needs, in the order of the declaration.
    #[must_use]
    pub fn valid_orders(&self) -> Vec<Ordering> {
        let mut found = Vec::new();
        self.extend(&mut Vec::new(), &mut found);
        found
    }

    fn extend(&self, done: &mut Vec<usize>, found: &mut Vec<Ordering>) {
        if done.len() == self.steps.len() {
            found.push(self.cost(done.clone()));
            return;
        }
        for next in 0..self.steps.len() {
            let is_ready = self.needs[next].iter().all(|needed| done.contains(needed));
            if is_ready && !done.contains(&next) {
                done.push(next);
                self.extend(done, found);
                done.pop();
            }
        }
    }

    fn cost(&self, steps: Vec<usize>) -> Ordering {
        let (mut uncompensated, mut rounds) = (0, 0);
        for completed in 0..steps.len() {
            let rollback = self.take_back(&steps[..completed], 1, &mut |_| true);
            uncompensated += rollback.uncompensated.len() as u64;
            rounds += rollback.rounds;
        }
        Ordering { steps, uncompensated, rounds }
    }

    /// Takes the first `completed` steps of the order back, the last one first, each with up to `attempts`
    /// of `undo`, which is given its place in the declaration and says whether it worked.
    ///
    /// # Panics
    /// If there are not so many steps, or no attempt may be made.
    pub fn rollback(&self, completed: usize, attempts: u32, mut undo: impl FnMut(usize) -> bool) -> Rollback {
        self.take_back(&self.order[..completed], attempts, &mut undo)
    }

    fn take_back(&self, done: &[usize], attempts: u32, undo: &mut dyn FnMut(usize) -> bool) -> Rollback {
        let mut rollback = Rollback::default();
        for &place in done.iter().rev() {
            let step = &self.steps[place];
            rollback.rounds += 1;
            if !step.compensable {
                rollback.uncompensated.push(place);
                continue;
            }
            let mut tried = Attempts::first(attempts);
            let mut is_undone = undo(place);
            while !is_undone && tried.again() {
                is_undone = undo(place);
            }
            rollback.calls += u64::from(tried.made());
            rollback.rounds += u64::from(tried.made() - 1);
            if is_undone { rollback.compensated.push(place) } else { rollback.stuck.push(place) }
        }
        rollback
    }
}

#[cfg(test)]
mod tests;
