"""What the auditor knows by name: of the standard library, of frameworks, and of how people call things."""

from __future__ import annotations

import re

from agentapp.audit.facts import STEP


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


MUTATING_METHODS = _words(
    """
    append extend insert remove pop popitem clear update setdefault add discard sort reverse appendleft
    extendleft popleft rotate subtract move_to_end difference_update intersection_update
    symmetric_difference_update __setitem__ __delitem__
    """
)
AMBIGUOUS_MUTATORS = frozenset(
    {"add", "update", "remove", "clear", "insert"}
)  # mutators that other objects have too
CONTAINER_CLASSES = re.compile(
    r"(^|\.)(list|dict|set|bytearray|defaultdict|OrderedDict|Counter|deque|ChainMap|UserDict|UserList|SimpleNamespace"
    r"|Weak(Key|Value)Dictionary|WeakSet|SortedDict|SortedList|LRUCache|TTLCache|LFUCache|Namespace|Munch|Box|array|StringIO|BytesIO)$"
)
THREAD_LOCAL_CLASSES = re.compile(
    r"(^|\.)(local|Local|LocalStack|LocalProxy|ContextVar|ThreadLocal|scoped_session|RequestLocal)$"
)
APP_CLASSES = re.compile(
    r"(^|\.)(Flask|Quart|FastAPI|Starlette|Sanic|Blueprint|APIRouter|Application|Bottle|Litestar|Dash|Celery|Api|Router)$"
)
THREAD_SAFE_CLASSES = re.compile(
    r"(^|\.)(getLogger|get_logger|Logger|compile|Queue|SimpleQueue|LifoQueue|PriorityQueue|R?Lock|Condition|Event|(Bounded)?Semaphore"
    r"|count|ThreadPoolExecutor|ProcessPoolExecutor|Counter\b.*labels)$"
)
STATEFUL_CLASSES = re.compile(
    r"(^|\.)(\w*Memory|Chat\w*Memory\w*|\w*History|Conversation\w*|\w*Breaker|ChatSession|AgentExecutor)(\.from_\w+)?$"
)
REQUEST_OBJECTS = re.compile(
    r"(^|\.)(g|session|request|response|ctx|context|websocket|session_state)($|\.|\[)"
)
ENVIRON = re.compile(r"^os\.(environ|environb)$")
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
CONSTRUCTION_METHODS = _words(
    """
    __init__ __new__ __post_init__ __attrs_post_init__ __init_subclass__ __set_name__ __del__
    __setstate__ __copy__ __deepcopy__ setup setUp model_post_init _init init
    """
)
RESPONSE_CLASSES = re.compile(r"(Response|Exception|Error|Endpoint|Redirect)$|^HTTP\w+$")
SINGLE_INSTANCE_BASES = re.compile(r"(^|\.)(ModelAdmin|AdminSite)$")
ENUM_BASES = re.compile(r"(^|\.)(\w*Enum|Flag|IntFlag)$")
SERVING_METHODS = ("__call__", "dispatch", "process_request", "process_response", "process_resource")
APPLICATION_ATTRIBUTES = frozenset({".app", ".application", ".registry"})
ARGUMENT_MUTATORS = _words(
    """
    heapq.heappush heapq.heappop heapq.heappushpop heapq.heapreplace heapq.heapify bisect.insort
    bisect.insort_left bisect.insort_right random.shuffle operator.setitem operator.delitem
    operator.iadd operator.ior operator.iconcat
    """
)
DEFAULT_COPYING_BASES = _words(
    """
    BaseModel BaseSettings SQLModel Schema Struct TypedDict Protocol BaseTool BaseChatModel BaseLLM LLM
    BaseRetriever Chain Serializable RunnableSerializable
    """
)
VALIDATOR_DECORATORS = re.compile(r"(^|\.)(model|field|root)?_?validator$")
HARMLESS_READERS = frozenset({"__repr__", "__str__", "__len__", "__bool__"})
BEFORE_REQUEST_HOOKS = re.compile(
    r"(^|\.)(before_request|before_app_request|middleware|url_value_preprocessor|before_websocket|on_request)$"
)
AFTER_REQUEST_HOOKS = re.compile(
    r"(^|\.)(teardown_\w+|after_request|after_app_request|after_this_request|on_response)$"
)
CALLER_NAMES = re.compile(
    r"(^|\.)(?<!boto3\.)(?<!botocore\.)(current_user|current_app|request|session|g|get_current_user|get_current_request|get_request|get_user)(\.|$|\(|\[)"
)
CACHE_DECORATORS = re.compile(
    r"(^|\.)(lru_cache|cache|memoize|memoized|cached|alru_cache|cache_resource|experimental_singleton)$"
)
LOCK_CLASSES = re.compile(r"(^|\.)(R?Lock|Condition|(Bounded)?Semaphore|Mutex|RWLock\w*|FileLock|AioRLock)$")
# Decorators that leave a function what it is: called by those who call it.
TRANSPARENT_DECORATORS = _words(
    """
    property staticmethod classmethod wraps lru_cache cache cached_property contextmanager
    asynccontextmanager abstractmethod overload override final setter getter deleter deprecated
    no_type_check typechecked validator field_validator model_validator root_validator computed_field
    total_ordering singledispatch synchronized locked with_lock retry memoize beartype hybrid_property
    dataclass inject
    """
)
STARTUP_FUNCTIONS = _words(
    """
    create_app make_app build_app app_factory get_application create_application lifespan startup
    on_startup startup_event ready post_fork on_starting when_ready post_worker_init
    before_first_request on_ready main cli init_app setup_logging configure_logging setup_app
    load_plugins pytest_configure includeme run_migrations_online run_migrations_offline
    """
)
SETUP_NAMES = re.compile(
    r"^_?(init|initiali[sz]e|set_?up|configure|bootstrap|install|register|autodiscover|enable|disable|load_config|instrument"
    r"|set_(global|default)|patch|monkeypatch)(_|$)|(^|_)(startup|lifespan|bootstrap)(_|$)"
)
STARTUP_DECORATORS = re.compile(
    r"(startup|on_event|before_first_request|worker_process_init|worker_init|lifespan|on_startup|_serving)"
)
STARTUP_REGISTRATIONS = re.compile(
    r"(on_startup|on_shutdown|on_cleanup|cleanup_ctx)\|\.append$|add_event_handler$|\.add_startup"
)
COMMAND_DECORATORS = re.compile(r"(^|\.)(command|group|callback|argument|option)$")
DECORATED_PARAMETERS = re.compile(
    r"_?(f|fn|fun|func|function|cls|klass|class_|cl|method|handler|wrapped|callable_?|tool|plugin|view|callback|target|decorated|meth|test|hook)(_?\d|_?cls|_?class|_?func|_?fn)?$"
)
IMPORT_TIME_METHODS = frozenset({"__init_subclass__", "__set_name__", "__class_getitem__", "__prepare__"})
NOT_SERVED_PATHS = re.compile(
    r"(^|/)(tests?|testing|conftest\.py|test_[^/]*\.py|[^/]*_test\.py|setup\.py|noxfile\.py|fabfile\.py|manage\.py"
    r"|docs?|management|examples?|benchmarks?|bench|migrations|alembic|__main__\.py|scripts?)(/|$)"
)
SCRIPT_FUNCTIONS = frozenset({"main", "cli"})  # of these starts nothing need be served after


def looks_like_lock(path: str) -> bool:
    """By its name alone."""
    last = path.replace("|[]", "").replace("|()", "").rpartition(STEP)[2].lower()
    return any(word in last for word in ("lock", "mutex", "sem", "cond", "guard"))
