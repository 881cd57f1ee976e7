"""Errors a person meets, each in three parts: what happened, where, and what to try.

LabError
├─ LayoutError (ValueError)
│  ├─ BadText
│  ├─ BadType (TypeError)
│  ├─ BadSize
│  ├─ UnknownDtype
│  ├─ UnknownDevice
│  ├─ MeshAxisRepeated
│  ├─ UnknownMeshAxis
│  ├─ MeshAxisUsedTwice
│  ├─ SpecTooLong
│  ├─ IndivisibleAxis
│  ├─ UnreducedNotAllowed
│  ├─ TooManyDevices
│  └─ LayoutMismatch
├─ ProgramNotFound
├─ BadConfig (ValueError)
├─ CostError (ValueError)
│  ├─ UnknownHardware
│  ├─ BadHardware
│  ├─ UnknownFigure
│  └─ BadEfficiency
├─ PlanError (ValueError)
│  ├─ UnknownModel
│  ├─ BadModel
│  ├─ BadRules
│  ├─ UnknownChoice
│  └─ BadPlan
├─ CatalogueError (ValueError)
│  ├─ NoCatalogue
│  ├─ BadTracks
│  ├─ BadProblem
│  ├─ BadReference
│  ├─ UnknownProblem
│  ├─ ProblemExists
│  └─ BadName
├─ StoreError
│  ├─ StoreUnwritable
│  ├─ StoreFull
│  ├─ StoreBusy
│  ├─ StoreDamaged
│  └─ StoreNewer
├─ PracticeError
│  ├─ NoAnswer
│  ├─ AnswerExists
│  ├─ FolderUnwritable
│  ├─ NoSuchSubmission
│  └─ NoTerminal
├─ OtherAxes (ValueError)
├─ Refused (ValueError)
├─ TargetError
│  ├─ BadTarget
│  ├─ NoSuchFunction
│  ├─ NoArguments
│  └─ BadArguments
├─ ProgramFailed
│  ├─ ProgramRaised
│  ├─ ProgramExited
│  ├─ ProgramDied
│  ├─ TimeLimitReached
│  └─ MemoryLimitReached
├─ CompileError (RuntimeError)
│  ├─ CompileTimeout
│  ├─ CompileFailed
│  ├─ NoTpuCompiler
│  └─ BadTopology (ValueError)
├─ SandboxError (RuntimeError)
│  ├─ NotConfined
│  └─ NoForkServer
└─ SimulationError (RuntimeError)
   ├─ CannotSimulate (NotImplementedError)
   ├─ UnboundAxis (NameError)
   ├─ DuplicatePermutation (ValueError)
   ├─ PermutationRange (IndexError)
   ├─ PermutationOrder
   ├─ ManualAxisConstraint (ValueError)
   ├─ Deadlock
   ├─ Unsupported (NotImplementedError)
   ├─ NotMeasured
   ├─ BadDeviceCount (ValueError)
   └─ NotSharded (TypeError)
"""

from __future__ import annotations

from shardlab.errors.catalogue import BadName as BadName
from shardlab.errors.catalogue import BadProblem as BadProblem
from shardlab.errors.catalogue import BadReference as BadReference
from shardlab.errors.catalogue import BadTracks as BadTracks
from shardlab.errors.catalogue import CatalogueError as CatalogueError
from shardlab.errors.catalogue import NoCatalogue as NoCatalogue
from shardlab.errors.catalogue import ProblemExists as ProblemExists
from shardlab.errors.catalogue import UnknownProblem as UnknownProblem
from shardlab.errors.compiling import BadTopology as BadTopology
from shardlab.errors.compiling import CompileError as CompileError
from shardlab.errors.compiling import CompileFailed as CompileFailed
from shardlab.errors.compiling import CompileTimeout as CompileTimeout
from shardlab.errors.compiling import NoTpuCompiler as NoTpuCompiler
from shardlab.errors.cost import BadEfficiency as BadEfficiency
from shardlab.errors.cost import BadHardware as BadHardware
from shardlab.errors.cost import CostError as CostError
from shardlab.errors.cost import UnknownFigure as UnknownFigure
from shardlab.errors.cost import UnknownHardware as UnknownHardware
from shardlab.errors.lab import LabError as LabError
from shardlab.errors.layout import BadSize as BadSize
from shardlab.errors.layout import BadText as BadText
from shardlab.errors.layout import BadType as BadType
from shardlab.errors.layout import IndivisibleAxis as IndivisibleAxis
from shardlab.errors.layout import LayoutError as LayoutError
from shardlab.errors.layout import LayoutMismatch as LayoutMismatch
from shardlab.errors.layout import MeshAxisRepeated as MeshAxisRepeated
from shardlab.errors.layout import MeshAxisUsedTwice as MeshAxisUsedTwice
from shardlab.errors.layout import SpecTooLong as SpecTooLong
from shardlab.errors.layout import TooManyDevices as TooManyDevices
from shardlab.errors.layout import UnknownDevice as UnknownDevice
from shardlab.errors.layout import UnknownDtype as UnknownDtype
from shardlab.errors.layout import UnknownMeshAxis as UnknownMeshAxis
from shardlab.errors.layout import UnreducedNotAllowed as UnreducedNotAllowed
from shardlab.errors.plan import BadModel as BadModel
from shardlab.errors.plan import BadPlan as BadPlan
from shardlab.errors.plan import BadRules as BadRules
from shardlab.errors.plan import PlanError as PlanError
from shardlab.errors.plan import UnknownChoice as UnknownChoice
from shardlab.errors.plan import UnknownModel as UnknownModel
from shardlab.errors.practice import AnswerExists as AnswerExists
from shardlab.errors.practice import FolderUnwritable as FolderUnwritable
from shardlab.errors.practice import NoAnswer as NoAnswer
from shardlab.errors.practice import NoSuchSubmission as NoSuchSubmission
from shardlab.errors.practice import NoTerminal as NoTerminal
from shardlab.errors.practice import PracticeError as PracticeError
from shardlab.errors.practice import StoreBusy as StoreBusy
from shardlab.errors.practice import StoreDamaged as StoreDamaged
from shardlab.errors.practice import StoreError as StoreError
from shardlab.errors.practice import StoreFull as StoreFull
from shardlab.errors.practice import StoreNewer as StoreNewer
from shardlab.errors.practice import StoreUnwritable as StoreUnwritable
from shardlab.errors.program import BadArguments as BadArguments
from shardlab.errors.program import BadConfig as BadConfig
from shardlab.errors.program import BadTarget as BadTarget
from shardlab.errors.program import MemoryLimitReached as MemoryLimitReached
from shardlab.errors.program import NoArguments as NoArguments
from shardlab.errors.program import NoSuchFunction as NoSuchFunction
from shardlab.errors.program import OtherAxes as OtherAxes
from shardlab.errors.program import ProgramDied as ProgramDied
from shardlab.errors.program import ProgramExited as ProgramExited
from shardlab.errors.program import ProgramFailed as ProgramFailed
from shardlab.errors.program import ProgramNotFound as ProgramNotFound
from shardlab.errors.program import ProgramRaised as ProgramRaised
from shardlab.errors.program import Refused as Refused
from shardlab.errors.program import TargetError as TargetError
from shardlab.errors.program import TimeLimitReached as TimeLimitReached
from shardlab.errors.sandbox import NoForkServer as NoForkServer
from shardlab.errors.sandbox import NotConfined as NotConfined
from shardlab.errors.sandbox import SandboxError as SandboxError
from shardlab.errors.simulation import BadDeviceCount as BadDeviceCount
from shardlab.errors.simulation import CannotSimulate as CannotSimulate
from shardlab.errors.simulation import Deadlock as Deadlock
from shardlab.errors.simulation import DuplicatePermutation as DuplicatePermutation
from shardlab.errors.simulation import ManualAxisConstraint as ManualAxisConstraint
from shardlab.errors.simulation import NotMeasured as NotMeasured
from shardlab.errors.simulation import NotSharded as NotSharded
from shardlab.errors.simulation import PermutationOrder as PermutationOrder
from shardlab.errors.simulation import PermutationRange as PermutationRange
from shardlab.errors.simulation import SimulationError as SimulationError
from shardlab.errors.simulation import UnboundAxis as UnboundAxis
from shardlab.errors.simulation import Unsupported as Unsupported
