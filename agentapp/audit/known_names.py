"""Names that the auditor recognises: of the standard library, of frameworks, and by convention."""

from __future__ import annotations

import re

from agentapp.audit.facts import STEP


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


# Methods that change a container.
MUTATING_METHODS = _words(
    """
    append extend insert remove pop popitem clear update setdefault add discard sort reverse appendleft
    extendleft popleft rotate subtract move_to_end difference_update intersection_update
    symmetric_difference_update __setitem__ __delitem__
    """
)
# Mutating methods whose names objects that are not containers often have too.
AMBIGUOUS_MUTATORS = frozenset({"add", "update", "remove", "clear", "insert"})
# Classes and functions that make a mutable container.
CONTAINER_CLASSES = re.compile(
    r"(^|\.)(list|dict|set|bytearray|defaultdict|OrderedDict|Counter|deque|ChainMap|UserDict|UserList|SimpleNamespace"
    r"|Weak(Key|Value)Dictionary|WeakSet|SortedDict|SortedList|LRUCache|TTLCache|LFUCache|Namespace|Munch|Box|array|StringIO|BytesIO)$"
)
# Classes whose instances have another content in each thread or context.
THREAD_LOCAL_CLASSES = re.compile(
    r"(^|\.)(local|Local|LocalStack|LocalProxy|ContextVar|ThreadLocal|scoped_session|RequestLocal)$"
)
# Classes of application objects.
APP_CLASSES = re.compile(
    r"(^|\.)(Flask|Quart|FastAPI|Starlette|Sanic|Blueprint|APIRouter|Application|Bottle|Litestar|Dash|Celery|Api|Router)$"
)
# Classes and functions whose results may be shared between threads.
THREAD_SAFE_CLASSES = re.compile(
    r"(^|\.)(getLogger|get_logger|Logger|compile|Queue|SimpleQueue|LifoQueue|PriorityQueue|R?Lock|Condition|Event|(Bounded)?Semaphore"
    r"|count|ThreadPoolExecutor|ProcessPoolExecutor|Counter\b.*labels)$"
)
# Library classes whose instances keep the state of one conversation.
STATEFUL_CLASSES = re.compile(
    r"(^|\.)(\w*Memory|Chat\w*Memory\w*|\w*History|Conversation\w*|\w*Breaker|ChatSession|AgentExecutor)(\.from_\w+)?$"
)
# Names of objects that belong to one request.
REQUEST_OBJECTS = re.compile(
    r"(^|\.)(g|session|request|response|ctx|context|websocket|session_state)($|\.|\[)"
)
ENVIRON = re.compile(r"^os\.(environ|environb)$")
# Functions that change the state of the whole process.
PROCESS_WIDE_CALLS = _words(
    """
    os.putenv os.unsetenv os.chdir os.umask os.setuid locale.setlocale random.seed numpy.random.seed
    np.random.seed torch.manual_seed socket.setdefaulttimeout sys.setrecursionlimit
    warnings.filterwarnings warnings.simplefilter time.tzset signal.signal logging.disable
    logging.basicConfig decimal.setcontext sys.path.append sys.path.insert sys.path.remove
    sys.path.extend os.environ.update os.environ.pop os.environ.setdefault os.environ.clear
    locale.resetlocale torch.set_default_dtype gettext.install
    """
)
LOGGER_FACTORIES = re.compile(r"(^|\.)(getLogger|get_logger)$")
LOGGER_MUTATORS = frozenset({".addHandler", ".removeHandler", ".setLevel", ".addFilter", ".removeFilter"})
# Methods that run while an object is made, before anything else refers to it.
CONSTRUCTION_METHODS = _words(
    """
    __init__ __new__ __post_init__ __attrs_post_init__ __init_subclass__ __set_name__ __del__
    __setstate__ __copy__ __deepcopy__ setup setUp model_post_init _init init
    """
)
# Classes that have the signature of an application, but are made anew for each request.
RESPONSE_CLASSES = re.compile(r"(Response|Exception|Error|Endpoint|Redirect)$|^HTTP\w+$")
# Base classes of which a framework makes one instance.
SINGLE_INSTANCE_BASES = re.compile(r"(^|\.)(ModelAdmin|AdminSite)$")
ENUM_BASES = re.compile(r"(^|\.)(\w*Enum|Flag|IntFlag)$")
# Methods of middleware that run for each request.
SERVING_METHODS = ("__call__", "dispatch", "process_request", "process_response", "process_resource")
# Attributes of a request that lead to the application object.
APPLICATION_ATTRIBUTES = frozenset({".app", ".application", ".registry"})
# Library functions that change their first argument.
ARGUMENT_MUTATORS = _words(
    """
    heapq.heappush heapq.heappop heapq.heappushpop heapq.heapreplace heapq.heapify bisect.insort
    bisect.insort_left bisect.insort_right random.shuffle operator.setitem operator.delitem
    operator.iadd operator.ior operator.iconcat
    """
)
# Base classes that copy the class attributes into each instance.
DEFAULT_COPYING_BASES = _words(
    """
    BaseModel BaseSettings SQLModel Schema Struct TypedDict Protocol BaseTool BaseChatModel BaseLLM LLM
    BaseRetriever Chain Serializable RunnableSerializable
    """
)
VALIDATOR_DECORATORS = re.compile(r"(^|\.)(model|field|root)?_?validator$")
# Methods whose reads without a lock do no harm.
HARMLESS_READERS = frozenset({"__repr__", "__str__", "__len__", "__bool__"})
# Decorators and methods that register a function to run before or around each request.
BEFORE_REQUEST_HOOKS = re.compile(
    r"(^|\.)(before_request|before_app_request|middleware|url_value_preprocessor|before_websocket|on_request)$"
)
# Decorators and methods that register a function to run after each request.
AFTER_REQUEST_HOOKS = re.compile(
    r"(^|\.)(teardown_\w+|after_request|after_app_request|after_this_request|on_response)$"
)
# Names of objects and functions that tell who is calling.
CALLER_NAMES = re.compile(
    r"(^|\.)(?<!boto3\.)(?<!botocore\.)(current_user|current_app|request|session|g|get_current_user|get_current_request|get_request|get_user)(\.|$|\(|\[)"
)
CACHE_DECORATORS = re.compile(
    r"(^|\.)(lru_cache|cache|memoize|memoized|cached|alru_cache|cache_resource|experimental_singleton)$"
)
LOCK_CLASSES = re.compile(r"(^|\.)(R?Lock|Condition|(Bounded)?Semaphore|Mutex|RWLock\w*|FileLock|AioRLock)$")
# Decorators that do not let other code call the function.
TRANSPARENT_DECORATORS = _words(
    """
    property staticmethod classmethod wraps lru_cache cache cached_property contextmanager
    asynccontextmanager abstractmethod overload override final setter getter deleter deprecated
    no_type_check typechecked validator field_validator model_validator root_validator computed_field
    total_ordering singledispatch synchronized locked with_lock retry memoize beartype hybrid_property
    dataclass inject
    """
)
# Functions that run once, before requests are served.
STARTUP_FUNCTIONS = _words(
    """
    create_app make_app build_app app_factory get_application create_application lifespan startup
    on_startup startup_event ready post_fork on_starting when_ready post_worker_init
    before_first_request on_ready main cli init_app setup_logging configure_logging setup_app
    load_plugins pytest_configure includeme run_migrations_online run_migrations_offline
    """
)
# Names of functions that set something up, if nothing in the program calls them.
SETUP_NAMES = re.compile(
    r"^_?(init|initiali[sz]e|set_?up|configure|bootstrap|install|register|autodiscover|enable|disable|load_config|instrument"
    r"|set_(global|default)|patch|monkeypatch)(_|$)|(^|_)(startup|lifespan|bootstrap)(_|$)"
)
# Decorators that register a function to run at start-up.
STARTUP_DECORATORS = re.compile(
    r"(startup|on_event|before_first_request|worker_process_init|worker_init|lifespan|on_startup|_serving)"
)
# Calls that register a function to run at start-up or shutdown.
STARTUP_REGISTRATIONS = re.compile(
    r"(on_startup|on_shutdown|on_cleanup|cleanup_ctx)\|\.append$|add_event_handler$|\.add_startup"
)
# Decorators that make a function a command.
COMMAND_DECORATORS = re.compile(r"(^|\.)(command|group|callback|argument|option)$")
# Parameter names of decorators for the function or class that is decorated.
DECORATED_PARAMETERS = re.compile(
    r"_?(f|fn|fun|func|function|cls|klass|class_|cl|method|handler|wrapped|callable_?|tool|plugin|view|callback|target|decorated|meth|test|hook)(_?\d|_?cls|_?class|_?func|_?fn)?$"
)
# Special methods that run when a class is defined.
IMPORT_TIME_METHODS = frozenset({"__init_subclass__", "__set_name__", "__class_getitem__", "__prepare__"})
# Paths of modules that no request reaches.
NOT_SERVED_PATHS = re.compile(
    r"(^|/)(tests?|testing|conftest\.py|test_[^/]*\.py|[^/]*_test\.py|setup\.py|noxfile\.py|fabfile\.py|manage\.py"
    r"|docs?|management|examples?|benchmarks?|bench|migrations|alembic|__main__\.py|scripts?)(/|$)"
)
# Start-up functions of scripts, which may serve no requests at all.
SCRIPT_FUNCTIONS = frozenset({"main", "cli"})


def looks_like_lock(path: str) -> bool:
    """Whether the last name in the path is usual for a lock."""
    last = path.replace("|[]", "").replace("|()", "").rpartition(STEP)[2].lower()
    return any(word in last for word in ("lock", "mutex", "sem", "cond", "guard"))
